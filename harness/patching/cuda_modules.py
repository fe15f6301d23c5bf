"""Modules of `load_jit` whose sources can be patched while they are in use.

SGLang loads a module once and keeps it. Here it keeps a `PatchableModule`, which loads the module
again from patched sources when a toggle of one of its files begins, and goes back when it ends.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.core.after_import import call_after_import, rebind_in_all_modules
from harness.core.errors import PatchError
from harness.core.preparation import announce_preparation
from harness.patching.cuda_sources import (
    PATCHES,
    PatchedCudaSource,
    find_included_files,
    make_patched_tree,
)
from harness.patching.device_code import (
    DeviceCodeVariant,
    build_device_code,
    can_build_device_code,
    has_host_code,
    have_same_host_code,
)
from harness.sanitizer.hooks import HOOKS, LaunchedLines
from harness.sanitizer.plugins.for_sglang.separate_names import choose_name_flags

LOADER = "sglang.kernels.jit.utils.compile.loader"
_PATCHED_NOTE = "the module has sources that toggles patch: "
_LOADED_MARK = "/sgl_kernel_jit_"  # in the path of each built module


class LaunchReach:
    """Counts what a patched module runs: each launch if they are seen, else each call.

    Launches are seen where a stand-in for libcudart catches them. A launch counts for an edit of
    which its kernel has a line, and for an edit of which no kernel of the module has one: that is
    host code. A call that launches nothing counts for host code if a check of the module refuses
    it; one that returns, or that tvm-ffi refuses, may have run none of the edit.
    """

    def __init__(self) -> None:
        # Launches of patched modules: of which nvcc made the same code, and other code.
        self.unchanged_launches, self.changed_launches = 0, 0
        # The lines of all kernels that are launched, by file, while they are recorded.
        self.recorded_lines: dict[str, set[int]] | None = None
        self._local = threading.local()

    @contextmanager
    def call(self, sources: tuple[PatchedCudaSource, ...]) -> Iterator[None]:
        """Count the call of a module that was built from patched sources."""
        if not HOOKS.sees_cuda_launches:
            for source in sources:
                for site in source.sites:
                    source.count_run(site.slot)
            yield
            return
        local = self._local
        before = getattr(local, "sources", ()), getattr(local, "has_launched", False)
        local.sources, local.has_launched = sources, False
        try:
            yield
        except BaseException as error:
            if not local.has_launched and _is_refused_by_check(error):
                _count_host_code(sources)
            raise
        finally:
            local.sources, local.has_launched = before[0], before[1] or local.has_launched

    def count_launch(self, launched: LaunchedLines, has_same_code: bool = False) -> None:
        if has_same_code:
            self.unchanged_launches += 1
            return
        if self.recorded_lines is not None:
            for file, line in launched.list_lines():
                self.recorded_lines.setdefault(file, set()).add(line)
        self._local.has_launched = True
        sources = getattr(self._local, "sources", ())
        self.changed_launches += bool(sources)
        for source in sources:
            for site in source.sites:
                lines = range(site.first_line, site.last_line + 1)
                answers = {launched.has_line(source.path, line) for line in lines}
                if True in answers or answers == {None}:
                    source.count_run(site.slot)


def _is_refused_by_check(error: BaseException) -> bool:
    """Return whether a check in a module's C++ code raised this.

    It is a RuntimeError. What tvm-ffi refuses before host code begins is a TypeError, and each
    error of the virtual GPU has a type of its own.
    """
    return type(error) is RuntimeError


def _count_host_code(sources: tuple[PatchedCudaSource, ...]) -> None:
    for source in sources:
        for site in source.sites:
            if has_host_code(source.text, site.first_line, site.last_line):
                source.count_run(site.slot)


REACH = LaunchReach()
HOOKS.count_cuda_launch = REACH.count_launch


class PatchableModule:
    """A JIT module; each export calls the variant of the sources that are patched now."""

    def __init__(
        self, loader: Any, load_jit: Callable[..., Any], args: Any, options: dict[str, Any]
    ) -> None:
        self._loader = loader
        self._load_jit = load_jit
        self._args = args
        self._options = options
        self._lock = threading.RLock()
        self._variants: dict[tuple[PatchedCudaSource, ...], Any] = {}
        self._included: frozenset[str] | None = None
        self._current = self._select_variant()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        getattr(self._current[2], name)  # a name that it does not have fails here

        def call(*args: Any, **options: Any) -> Any:
            generation, sources, module = self._current
            if generation != PATCHES.generation:
                self._current = _, sources, module = self._select_variant()
            if not sources:
                return getattr(module, name)(*args, **options)
            with REACH.call(sources):
                return getattr(module, name)(*args, **options)

        setattr(self, name, call)
        return call

    def _build_variant(self) -> None:
        """Load the variant of the sources that are patched now, before anything is timed."""
        self._current = self._select_variant()

    def _select_variant(self) -> tuple[int, tuple[PatchedCudaSource, ...], Any]:
        """Return the generation of the patches, those of this module, and the module."""
        with self._lock:
            generation = PATCHES.generation
            sources = PATCHES.select(self._list_included()) if PATCHES else ()
            if sources not in self._variants:
                try:
                    with announce_preparation():
                        self._variants[sources] = self._load(sources)
                except Exception as error:
                    if sources:
                        error.add_note(_PATCHED_NOTE + ", ".join(one.path for one in sources))
                    raise
            return generation, sources, self._variants[sources]

    def _load(self, sources: tuple[PatchedCudaSource, ...]) -> Any:
        if not sources:
            return self._load_unpatched()
        root = self._find_site_packages()
        own_texts = [_read_own_text(root, source) for source in sources]
        if own_texts == [source.text for source in sources]:
            return self._load_unpatched()  # the side of a toggle that the release has by itself
        needs_device_code_alone = (
            HOOKS.sees_cuda_launches
            and can_build_device_code(self._loader)
            and all(
                own is not None and have_same_host_code(own, source.text)
                for own, source in zip(own_texts, sources, strict=True)
            )
        )
        tree = make_patched_tree(root, sources)

        def move(path: str) -> str:
            here = Path(path)
            return str(tree / here.relative_to(root)) if here.is_relative_to(root) else path

        options = dict(self._options)
        for kind in ("cuda_files", "cpp_files"):
            options[kind] = [move(file) for file in self._loader.resolve_sources(options.get(kind))]
        options["extra_include_paths"] = [
            move(str(Path(folder).resolve())) for folder in options.get("extra_include_paths") or ()
        ]
        name_flags = choose_name_flags(getattr(self._loader, "ninja", None))
        if not HOOKS.sees_cuda_launches and name_flags:  # there all modules have them
            options["extra_cuda_cflags"] = [*(options.get("extra_cuda_cflags") or ()), *name_flags]
        with _INCLUDE_LOCK:
            before = self._loader.DEFAULT_INCLUDE
            self._loader.DEFAULT_INCLUDE = [move(folder) for folder in before]
            try:
                if needs_device_code_alone:
                    built = build_device_code(self._loader, self._load_jit, self._args, options)
                else:
                    built = self._load_jit(*self._args, **options)
            except Exception as error:
                message = str(error)
                failures = BUILD_FAILURES if has_compiler_error(message) else MACHINE_FAILURES
                failures.append(find_compiler_error(message))
                raise
            finally:
                self._loader.DEFAULT_INCLUDE = before
        if not isinstance(built, str):
            return built
        return DeviceCodeVariant(self._load_unpatched(), built)

    def _load_unpatched(self) -> Any:
        if () not in self._variants:
            self._variants[()] = self._load_jit(*self._args, **self._options)
        return self._variants[()]

    def _list_included(self) -> frozenset[str]:
        if self._included is None:
            root = self._find_site_packages()
            files = [
                Path(file)
                for kind in ("cuda_files", "cpp_files")
                for file in self._loader.resolve_sources(self._options.get(kind))
            ]
            extra = self._options.get("extra_include_paths") or ()
            folders = [Path(folder) for folder in (*self._loader.DEFAULT_INCLUDE, *extra)]
            self._included = frozenset(
                file.relative_to(root).as_posix()
                for file in find_included_files(files, folders)
                if file.is_relative_to(root)
            )
        return self._included

    def _find_site_packages(self) -> Path:
        package = sys.modules["sglang"].__path__[0]
        return Path(package).resolve().parent


def _build_variant(module: Any) -> None:
    """Load the variant that a module would run now."""
    if isinstance(module, PatchableModule):
        module._build_variant()


HOOKS.build_cuda_module = _build_variant


def _read_own_text(root: Path, source: PatchedCudaSource) -> str | None:
    """Return the release's own text of a source; None if the release has no such file."""
    file = root / source.path
    return file.read_text(encoding="utf-8") if file.is_file() else None


def is_of_patched_module(error: BaseException) -> bool:
    """Return whether a module did not load of which a toggle patches a source."""
    return any(note.startswith(_PATCHED_NOTE) for note in getattr(error, "__notes__", ()))


def find_compiler_error(message: str) -> str:
    """Return the compiler's first error in the words of a failed build, or else the first line."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    errors = [line for line in lines if "error:" in line or "fatal" in line or "undefined" in line]
    return (errors or lines or [message])[0][:300]


def has_compiler_error(message: str) -> bool:
    """Return whether a failed build says that its code is wrong, and not only its machine."""
    return any(
        _CODE_ERROR.search(line) and not _MACHINE_ERROR.search(line)
        for line in message.splitlines()
    )


# nvcc: `k.cuh(3): error: …`; ptxas: `ptxas error   : …`
_CODE_ERROR = re.compile(r"\berror\s*:|undefined (symbol|reference)|Unresolved extern")
_MACHINE_ERROR = re.compile(
    r"^\s*ninja:|No space left|quota exceeded|Killed signal|Cannot allocate memory"
)
# Of patched modules in this process: a fault may not compile, and a build may fail by itself.
BUILD_FAILURES: list[str] = []
MACHINE_FAILURES: list[str] = []  # a full disk, no compiler, a timeout
_INCLUDE_LOCK = threading.Lock()
_installed = False


def install_module_hooks() -> None:
    """Make the modules of `load_jit` patchable that are loaded from now on."""
    global _installed
    if not _installed:
        _installed = True
        call_after_import({LOADER: _wrap_loader})


def _wrap_loader(loader: Any) -> None:
    load_jit = loader.load_jit

    def load_patchable(*args: Any, **options: Any) -> Any:
        return PatchableModule(loader, load_jit, args, options)

    rebind_in_all_modules("load_jit", load_jit, load_patchable)


def refuse_loaded_modules(target: str) -> None:
    """Raise PatchError if a module was loaded before `install`, which nothing can swap."""
    if _modules_loaded_before:
        raise PatchError(
            f"{target} cannot be toggled here: {_modules_loaded_before} JIT modules of SGLang were "
            "loaded before: import harness.toggles before the first of them"
        )


def _count_loaded_modules() -> int:
    """Count the built modules that this process has mapped."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return 0
    return len({line.split(maxsplit=5)[5] for line in maps.splitlines() if _LOADED_MARK in line})


_modules_loaded_before = _count_loaded_modules()
