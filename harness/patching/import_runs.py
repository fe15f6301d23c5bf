"""Records the code that runs while modules are imported: a live change comes too late for it.

Invariant: what an import computed with a function, or from a constant, is known. Example: with
`TWO = vals.PAGE * 2` in a module, the code of its import is recorded, which reads PAGE; so a live
change of PAGE, which would leave TWO as it was, is refused. Standard library alone: a process may
import SGLang at any time after this.
"""

from __future__ import annotations

import contextlib
import cProfile
import dis
import functools
import importlib.util
import itertools
import os
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import (
    ExtensionFileLoader,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
)
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

from harness.core.after_import import find_spec_behind
from harness.core.errors import PatchError
from harness.core.paths import HARNESS_FOLDER, project_folder, shorten_release_paths

PACKAGE = "sglang"
EVERYBODY = "all tests"
_SNAPSHOTS = ("vars", "dir", "__dict__", "getmembers", "getattr")
FIXTURES = str(project_folder() / "fixtures")
_GENERATED = "<string>"  # the file of the methods that `dataclass` writes
_OPTIMIZED = 0x1  # a flag of functions; a module's and a class's body have it not
_IMPORTS = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")
_STARTS = ("os.fork", "os.forkpty", "os.posix_spawn", "subprocess.Popen")
_NAME_READS = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_GLOBALS")
_ATTRIBUTE_READS = ("LOAD_ATTR", "LOAD_METHOD")
_FOREIGN_FOLDERS = tuple(
    {*(sysconfig.get_path(name) for name in ("stdlib", "platstdlib")), str(HARNESS_FOLDER)}
)

_PACKAGE_FOLDERS = {"site-packages", "dist-packages"}
_PYTEST = importlib.util.find_spec("pytest")
# Packages may be in a folder of any name (`pip install --target`).
_PYTEST_FOLDER = f"{Path(_PYTEST.origin).parents[1]}/" if _PYTEST and _PYTEST.origin else "<none>"


@dataclass(frozen=True)
class ReadingLine:
    """A line that ran during an import, and reads a name."""

    file: str
    line: int


class ImportRuns:
    """The code that ran during imports, by the file of tests that alone depends on it.

    `EVERYBODY` is the key of what all depend on: SGLang's modules, and those that tests share.
    """

    def __init__(self) -> None:
        self._profiles: dict[str, cProfile.Profile] = {}
        self._codes: dict[str, dict[int, CodeType]] = {}
        self._recording = ""  # for whom; empty: nobody
        self._dependent = ""  # the file of the running test
        self._threads: list[cProfile.Profile] = []
        # Lines of tests that read a file of the package ('' stands for a process that they start).
        self._files: dict[str, dict[str, ReadingLine]] = {}  # by the file of tests
        self.toggled_modules: frozenset[str] = frozenset()  # live, and not to be imported again

    # Recording

    @contextlib.contextmanager
    def record(self, dependent: str) -> Iterator[None]:
        """Record the code that runs in the block, on which all of this file depends."""
        before = self._recording
        self._switch(dependent)
        try:
            yield
        finally:
            self._switch(before)

    def stop(self) -> None:
        """Record no more, in the middle of a block."""
        self._switch("")

    def _switch(self, dependent: str) -> None:
        if dependent == self._recording:
            return
        if self._recording:
            self._profiles[self._recording].disable()
            threading.setprofile(None)
            self._recording = ""
        # Where somebody else measures this process, modules are read instead.
        if dependent and sys.getprofile() is None:
            if dependent not in self._profiles:
                self._profiles[dependent] = cProfile.Profile(subcalls=False, builtins=False)
            with contextlib.suppress(ValueError):  # Python 3.12: there is another tool
                self._profiles[dependent].enable()
                threading.setprofile(self._profile_thread)
                self._recording = dependent

    def _profile_thread(self, *_: object) -> None:
        """Record a thread that starts now; on its results everybody may depend."""
        profile = cProfile.Profile(subcalls=False, builtins=False)
        with contextlib.suppress(ValueError):
            profile.enable()  # in place of this function
            self._threads.append(profile)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find what the finders behind this one find, and record the import if it is SGLang's."""
        if name in self.toggled_modules:
            raise PatchError(
                f"{name} is imported again while its code is toggled live: it would be the code "
                "without the toggle"
            )
        is_own = name.partition(".")[0] == PACKAGE
        if self._recording == (EVERYBODY if is_own else ""):
            return None
        spec = find_spec_behind(self, name, path, target)
        loader: Any = spec.loader if spec is not None else None
        if type(loader) in (SourceFileLoader, ExtensionFileLoader):
            dependent = "" if not is_own and _is_foreign(loader.path) else EVERYBODY
            load = loader.exec_module

            def execute(module: ModuleType) -> None:
                with self.record(dependent):
                    load(module)

            loader.exec_module = execute
        return spec

    def watch(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Record what a test takes of the package at its import past the names of a module."""
        if not self._recording or event not in ("open", *_STARTS):
            return
        path = arguments[0] if event == "open" else ""
        if not isinstance(path, str) or (path and PACKAGE not in path):
            return
        if (frame := find_test_frame(sys._getframe(1), _IMPORTS)) is not None:
            line = ReadingLine(frame.f_code.co_filename, frame.f_lineno)
            lines = self._files.setdefault(self._recording, {})
            lines.setdefault(os.path.realpath(path) if path else "", line)

    # What ran

    @contextlib.contextmanager
    def run_test_of(self, file: str) -> Iterator[None]:
        """Have the running code depend on what its own file of tests called at import, too."""
        before, self._dependent = self._dependent, file
        try:
            yield
        finally:
            self._dependent = before

    @property
    def is_test_running(self) -> bool:
        return bool(self._dependent)

    def has_run(self, code: CodeType) -> bool:
        return id(code) in self._collect()

    def find_reader(
        self,
        name: str,
        holders: Iterable[tuple[ModuleType, str]] = (),
        beside: str = "",
    ) -> ReadingLine | None:
        """Find a line of code that ran and reads a name of these modules, if any.

        Any attribute of that name counts, since its object is not known any more. With `beside`
        only code of tests counts that names this, too.
        """
        files = {(getattr(module, "__file__", None), alias) for module, alias in holders}
        names = {name, *(alias for _, alias in files)}
        codes = self._collect()
        loaded = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
        for code in [*codes.values(), *_iterate_unrecorded_bodies(codes)]:
            named = {*code.co_names, *(c for c in code.co_consts if isinstance(c, str))}
            read = named & names
            # Of code without a module, what `dataclass` wrote reads no names; `eval` of a test may.
            is_evaluated = code.co_name == "<module>" and _is_of_tests(code.co_filename)
            if code.co_filename not in loaded and not is_evaluated:
                continue
            if beside and (beside not in named or not _is_of_tests(code.co_filename)):
                continue
            if read and (line := _find_read_line(code, read, files, name)) is not None:
                return ReadingLine(shorten_release_paths(code.co_filename), line)
        return None

    def find_file_reader(self, file: str) -> ReadingLine | None:
        """Find a line of a test's import that read a file; of '', one that started a process."""
        lines = self._files.get(EVERYBODY, {}) | self._files.get(self._dependent, {})
        return lines.get(os.path.realpath(file) if file else "")

    def has_copy(self, file: str) -> bool:
        """Return whether a test ran the file of a module as another one; a reload makes none."""
        codes = self._collect()
        runs = {key for key, c in codes.items() if (c.co_filename, c.co_name) == (file, "<module>")}
        return len(runs) > 1 and bool(runs & self._codes.get(self._dependent, {}).keys())

    def find_snapshot(self) -> ReadingLine | None:
        """Find a line of a test's import that may have read all names of a module or a class."""
        for code in self._collect().values():
            if not _is_in_package(code.co_filename) and (line := _find_snapshot_line(code)):
                return ReadingLine(shorten_release_paths(code.co_filename), line)
        return None

    def _collect(self) -> dict[int, CodeType]:
        """Return the code that ran at import, and on which the running code depends."""
        threads = [(EVERYBODY, profile) for profile in self._threads]
        if not self._recording:
            self._threads = []  # what a thread runs from here on is no part of an import
        for dependent, profile in [*self._profiles.items(), *threads]:
            codes = self._codes.setdefault(dependent, {})
            for entry in profile.getstats():
                code: Any = entry.code
                if isinstance(code, CodeType) and not _is_foreign(code.co_filename):
                    codes[id(code)] = code
            if dependent != self._recording:
                self._profiles.pop(dependent, None)
        return {**self._codes.get(EVERYBODY, {}), **self._codes.get(self._dependent, {})}


def _iterate_unrecorded_bodies(codes: dict[int, CodeType]) -> Iterator[CodeType]:
    """Iterate the code of SGLang's modules that were imported without a record.

    It is that of modules and classes, which certainly ran; of functions nothing is known.
    """
    recorded = {code.co_filename for code in codes.values() if code.co_name == "<module>"}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        loader = getattr(getattr(module, "__spec__", None), "loader", None)
        if name.partition(".")[0] != PACKAGE or file in recorded:
            continue
        if isinstance(loader, SourceFileLoader) and (code := loader.get_code(name)) is not None:
            yield from _iterate_bodies(code)


def _iterate_bodies(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and not constant.co_flags & _OPTIMIZED:
            yield from _iterate_bodies(constant)


def _find_read_line(
    code: CodeType, names: set[str], files: set[tuple[str | None, str]], name: str
) -> int | None:
    line = code.co_firstlineno
    instructions = list(dis.get_instructions(code))
    for each, following in zip(instructions, [*instructions[1:], None], strict=True):
        line = each.positions.lineno or line if each.positions is not None else line
        is_read = (
            (each.opname in _NAME_READS and (code.co_filename, each.argval) in files)
            or (each.opname in _ATTRIBUTE_READS and each.argval == name)
            or (each.opname == "IMPORT_FROM" and each.argval == name and code.co_name != "<module>")
            or (  # by `getattr`; before a subscript it is the name of an annotation
                each.opname == "LOAD_CONST"
                and each.argval == name
                and (following is None or following.opname != "STORE_SUBSCR")
            )
        )
        if is_read:
            return line
    return None


def _find_snapshot_line(code: CodeType) -> int | None:
    """Find a line that reads all names of something, or one by a name that is made there."""
    instructions = list(dis.get_instructions(code))
    for index, each in enumerate(instructions):
        if each.opname not in (*_NAME_READS, *_ATTRIBUTE_READS) or each.argval not in _SNAPSHOTS:
            continue
        if each.argval == "getattr" and _has_written_name(instructions[index + 1 : index + 6]):
            continue
        return each.positions.lineno if each.positions is not None else code.co_firstlineno
    return None


def _has_written_name(following: list[dis.Instruction]) -> bool:
    """Return whether the second argument of a call of `getattr` is a constant."""
    for each, then in itertools.pairwise(following):
        if each.opname == "LOAD_CONST":
            return isinstance(each.argval, str) and then.opname not in _ATTRIBUTE_READS
    return False


@functools.cache
def _is_in_package(file: str) -> bool:
    return PACKAGE in Path(file).parts


def _is_of_tests(file: str) -> bool:
    return not (_is_in_package(file) or file.startswith(FIXTURES))


def find_test_frame(frame: FrameType | None, past: tuple[str, ...]) -> FrameType | None:
    """Find who acts here through the standard library alone: a line of a test, or nobody.

    It is no test's act if it goes through a file whose name ends with one of `past`.
    """
    while frame is not None:
        file = frame.f_code.co_filename
        if file.endswith(past) or file.startswith(str(HARNESS_FOLDER)) or is_installed(file):
            return None
        if not file.startswith((*_FOREIGN_FOLDERS, "<frozen")):
            return frame
        frame = frame.f_back
    return None


def is_installed(file: str) -> bool:
    """Return whether a file belongs to an installed package, SGLang or another one."""
    return bool(_PACKAGE_FOLDERS & {*Path(file).parts}) or file.startswith(_PYTEST_FOLDER)


def _is_foreign(file: str) -> bool:
    """Return whether a file belongs to Python, to this project's harness or to another package."""
    if is_installed(file):
        return PACKAGE not in Path(file).parts
    return file.startswith(_FOREIGN_FOLDERS) or (file.startswith("<") and file != _GENERATED)


RUNS = ImportRuns()


def install_recorder() -> None:
    """Record each import of SGLang from here on."""
    if RUNS in sys.meta_path:
        return
    sys.addaudithook(RUNS.watch)  # for good
    # Behind the finder of toggles, which has to be the first.
    position = sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else 0
    sys.meta_path.insert(position, RUNS)
