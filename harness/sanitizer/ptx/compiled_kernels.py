"""Compiled kernels: each compiled from its text once, cached on disk, loaded once in a process."""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from harness.core.cache import get_or_compute, is_cached
from harness.core.code_digest import compute_digest, describe_versions, digest_code
from harness.sanitizer.llvm.jit import LlvmJit, describe_host
from harness.sanitizer.llvm.number_formats import select_called_helpers
from harness.sanitizer.ptx import (
    access_checks,
    async_ops,
    copy_checks,
    fragment_ops,
    scheduler,
    uninitialized_words,
)
from harness.sanitizer.ptx.lowering import LoweredPtx, PtxLowering
from harness.sanitizer.ptx.module_text import PtxText
from harness.sanitizer.ptx.reader import read_kernel

CODE_DIGEST = digest_code("sanitizer")
_RECOMPILE_AFTER_SECONDS = 0.25  # about the time of a thorough compilation
_CATEGORIES = {False: "ptx-kernels", True: "ptx-thorough"}


@dataclass(frozen=True, slots=True)
class StoredPtx:
    lowered: LoweredPtx
    code: bytes


@functools.cache
def _hash_host() -> str:
    return compute_digest(*describe_host(), describe_versions(("llvmlite",)), CODE_DIGEST)


class PtxRuntime:
    """The scheduler and the checks, loaded into this process and its forks."""

    def __init__(self) -> None:
        self.jit = LlvmJit()
        code = get_or_compute(
            "ptx-runtime",
            _hash_host(),
            lambda: self.jit.compile_object(_build_runtime(), thorough=True),
        )
        names = ("ptx_launch", *access_checks.ACCESS_FUNCTIONS)
        launch, *functions = self.jit.load_functions(code, *names)
        for name, address in zip(names[1:], functions, strict=True):
            self.jit.add_symbol(name, address)
        self.launch: Callable[[int], int] = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(
            launch
        )


def _build_runtime() -> str:
    text = "\n".join(
        (
            access_checks.build_access_checks(),
            scheduler.build_scheduler(),
            async_ops.build_mbarrier_functions(),
            copy_checks.build_copy_functions(),
            fragment_ops.build_row_function(),
            uninitialized_words.build_store_function(),
        )
    )
    return text + select_called_helpers(text)


@functools.cache
def get_runtime() -> PtxRuntime:
    return PtxRuntime()


class CompiledPtx:
    """A kernel in this process; one that has run for 0.25 s is compiled again, thoroughly."""

    def __init__(self, key: str, stored: StoredPtx, thorough: bool) -> None:
        self.lowered = stored.lowered
        self._key, self.thorough = key, thorough
        self._seconds_run = 0.0
        [self.thread_function] = get_runtime().jit.load_functions(stored.code, "thread")

    def launch(self, context: int) -> int:
        start = perf_counter()
        outcome = get_runtime().launch(context)
        self._seconds_run += perf_counter() - start
        return outcome

    def prepare(self) -> None:
        """Compile thoroughly what has run for long."""
        if self._seconds_run > _RECOMPILE_AFTER_SECONDS and not self.thorough:
            self.thorough = True
            stored = _compile_kernel(self._key, self.lowered, True)
            [self.thread_function] = get_runtime().jit.load_functions(stored.code, "thread")


def _compile_kernel(key: str, lowered: LoweredPtx, thorough: bool) -> StoredPtx:
    return get_or_compute(
        _CATEGORIES[thorough],
        key,
        lambda: StoredPtx(lowered, get_runtime().jit.compile_object(lowered.text, thorough)),
    )


def is_compiled(module_key: str, entry: str, tracks_overflow: bool) -> bool:
    """Return whether a kernel lies on disk in a compiled form."""
    key = _make_key(module_key, entry, tracks_overflow)
    return any(is_cached(category, key) for category in _CATEGORIES.values())


def _make_key(module_key: str, entry: str, tracks_overflow: bool) -> str:
    text = f"{module_key} {entry} {tracks_overflow} {_hash_host()}"
    return hashlib.sha256(text.encode()).hexdigest()


def compile_kernel(
    module: PtxText, module_key: str, entry: str, tracks_overflow: bool
) -> CompiledPtx:
    key = _make_key(module_key, entry, tracks_overflow)

    def compute() -> StoredPtx:
        kernel = module.read_kernel(entry)
        graph = read_kernel(module, kernel)
        lowered = PtxLowering(module, kernel, graph, tracks_overflow).lower()
        return StoredPtx(lowered, get_runtime().jit.compile_object(lowered.text, thorough=False))

    thorough = is_cached(_CATEGORIES[True], key)
    stored = get_or_compute(_CATEGORIES[thorough], key, compute)
    return CompiledPtx(key, stored, thorough)
