"""Compiled kernels in PTX, and the scheduler and the checks that they call."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

from harness.core.cache import get_or_compute
from harness.sanitizer.llvm.jit import LlvmJit
from harness.sanitizer.llvm.number_formats import select_called_helpers
from harness.sanitizer.llvm.stored_code import CodeStore, CompiledCode, hash_host
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


class PtxRuntime:
    """The scheduler and the checks, loaded into this process and its forks."""

    def __init__(self) -> None:
        self.jit = LlvmJit()
        code = get_or_compute(
            "ptx-runtime",
            hash_host(),
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


_STORE: CodeStore[LoweredPtx] = CodeStore(
    "ptx-kernels", "ptx-thorough", "thread", lambda: get_runtime().jit
)


class CompiledPtx(CompiledCode[LoweredPtx]):
    def launch(self, context: int) -> int:
        return self.measure(get_runtime().launch, context)


def is_compiled(module_key: str, entry: str, tracks_overflow: bool) -> bool:
    """Return whether a kernel lies on disk in a compiled form."""
    key = _STORE.make_key(module_key, entry, str(tracks_overflow))
    return any(_STORE.is_stored(key, thorough) for thorough in (False, True))


def compile_kernel(
    module: PtxText, module_key: str, entry: str, tracks_overflow: bool
) -> CompiledPtx:
    def lower() -> LoweredPtx:
        kernel = module.read_kernel(entry)
        return PtxLowering(module, kernel, read_kernel(module, kernel), tracks_overflow).lower()

    key = _STORE.make_key(module_key, entry, str(tracks_overflow))
    return CompiledPtx(_STORE, key, lower)
