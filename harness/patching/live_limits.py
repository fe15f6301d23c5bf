"""What a live change cannot reach: results of imports, and copies of the code that a test makes.

Invariant: a guard compares nothing with the code as it was before the change. Example: a guard that
reloads a toggled module, or runs its file under another name, gets the code without the change, as
it would not in a process that was patched at import; so either raises PatchError.
"""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable
from importlib.util import cache_from_source
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import FrameType
from typing import Any

from harness.core.errors import PatchError
from harness.patching.import_runs import FIXTURES, RUNS, find_test_frame
from harness.patching.live_patches import PATCHED_CODE, refuse_live_change
from harness.patching.module_variants import ModuleVariant

_SUSPENDABLE = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
_READERS_OF_CODE = ("__code__", "getsource", "getsourcelines")
_READERS_OF_DEFAULTS = ("__defaults__", "__kwdefaults__", "signature", "getfullargspec")
_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
_SOURCE_READERS = ("inspect.py", "linecache.py", "traceback.py")


def refuse_results_of_imports(variant: ModuleVariant) -> None:
    """Raise PatchError if an import has computed something with what a variant changes."""
    file = getattr(variant.module, "__file__", "") or ""  # CUDA sources have none
    for target, called, code in variant.changed_code:
        if RUNS.has_run(code):
            refuse_live_change(target, f"what an import computed with {called}, which ran then,")
        # The call of a generator is not recorded: it begins when it is read.
        called_later = [code.co_name] if code.co_flags & _SUSPENDABLE else []
        for name in (*_READERS_OF_CODE, *called_later):
            if found := RUNS.find_reader(name, beside=code.co_name):
                what = f"what line {found.line} of {found.file} takes of the code of {called}"
                refuse_live_change(target, what)
    for target, function in variant.changed_defaults:
        for name in _READERS_OF_DEFAULTS:
            if found := RUNS.find_reader(name, beside=function):
                what = f"what line {found.line} of {found.file} reads of defaults"
                refuse_live_change(target, what)
    for target, name, holders in variant.changed_names:
        if found := RUNS.find_reader(name, holders):
            what = f"what line {found.line} of {found.file} derives from {name}"
            refuse_live_change(target, what)
        if found := RUNS.find_snapshot():
            refuse_live_change(target, f"what line {found.line} of {found.file} reads of all names")
    if file and (found := RUNS.find_file_reader(file)):
        what = f"what line {found.line} of {found.file} takes from the module's file"
        refuse_live_change(variant.module.__name__, what)
    if found := RUNS.find_file_reader(""):
        what = f"what the process of line {found.line} of {found.file} computes"
        refuse_live_change(variant.module.__name__, what)
    if file and RUNS.has_copy(file):
        refuse_live_change(variant.module.__name__, "a copy by a second import of its file")


class CopyWatch:
    """Refuses what would give a test the code of a toggled module without its toggle."""

    def __init__(self) -> None:
        self._files: dict[str, str] = {}  # of toggled modules, compiled ones as well
        self._is_installed = False

    def watch(self, names: Iterable[str]) -> None:
        """Watch these modules from here on, and no others."""
        RUNS.toggled_modules = frozenset(names)
        self._files = {}
        for name in RUNS.toggled_modules:
            file = getattr(sys.modules.get(name), "__file__", None)
            if file and file.endswith(".py"):
                places = (file, cache_from_source(file))
                self._files |= {os.path.realpath(place): name for place in places}
        if self._files and not self._is_installed:
            sys.addaudithook(self._audit)  # for good
            linecache.getlines = _refuse_text_of_changes(linecache.getlines)
            self._is_installed = True

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not self._files or not RUNS.is_test_running:
            return
        path = arguments[0]
        name = self._files.get(os.path.realpath(path)) if isinstance(path, str) else None
        if name is not None and _is_read_by_test(sys._getframe(1)):
            raise PatchError(
                f"the test reads the file of {name}, whose code is toggled live: a copy of it is "
                "the code without the toggle, and no reference"
            )


def _refuse_text_of_changes(get_lines: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """Refuse what a test asks `inspect` of changed code: the text tells the side, no behaviour."""

    def getlines(filename: str, module_globals: Any = None) -> list[str]:
        caller = sys._getframe(1)
        is_asked = RUNS.is_test_running and caller.f_code.co_filename.endswith("inspect.py")
        if is_asked and filename.startswith(PATCHED_CODE):
            frame: FrameType | None = caller
            while frame and frame.f_code.co_filename.startswith(_LIBRARIES):
                frame = frame.f_back
            is_own = frame and frame.f_code.co_filename.startswith(FIXTURES)
            if not is_own and _is_read_by_test(frame):
                raise PatchError(
                    "the test reads the text of code that is toggled live, which says on which "
                    "side the test is and not what the code does"
                )
        return get_lines(filename, module_globals)

    return getlines


def _is_read_by_test(frame: FrameType | None) -> bool:
    """Return whether neither a traceback, nor the harness, nor a package reads here."""
    return find_test_frame(frame, _SOURCE_READERS) is not None


COPIES = CopyWatch()
