"""The compiled programs of a process, by their keys.

A process that forks others can load the programs that one fork needed (`list_loaded_programs` in
the fork, `preload_programs` in the process), so that the next forks have them from the start.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

from harness.core.cache import get_or_compute
from harness.sanitizer.cpu import access_checks
from harness.sanitizer.cpu.arithmetic import Arithmetic
from harness.sanitizer.cpu.lowering import KernelLowering, LoweredKernel
from harness.sanitizer.ir.graph import KernelGraph
from harness.sanitizer.llvm.jit import LlvmJit
from harness.sanitizer.llvm.stored_code import CodeStore, CompiledCode, hash_host

_LAUNCH_SIGNATURE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)


@functools.cache
def get_jit() -> LlvmJit:
    """Return the JIT of this process and its forks, with the functions that all kernels call."""
    machine = LlvmJit()
    code = get_or_compute(
        "accesses",
        hash_host(),
        lambda: machine.compile_object(access_checks.build_access_module(), thorough=True),
    )
    addresses = machine.load_functions(code, *access_checks.list_access_functions())
    for name, address in zip(access_checks.list_access_functions(), addresses, strict=True):
        machine.add_symbol(name, address)
    return machine


_STORE: CodeStore[LoweredKernel] = CodeStore("programs", "thorough", "launch", get_jit)


class CompiledProgram(CompiledCode[LoweredKernel]):
    def launch(self, context: int) -> int:
        wrong = self.measure(_LAUNCH_SIGNATURE(self.address), context)
        self.recompile_if_slow()
        return wrong


_MAX_LOADED_PROGRAMS = 1000  # in one process
_loaded_programs: dict[str, CompiledProgram] = {}


def load_program(
    key: str,
    build_graph: Callable[[], KernelGraph],
    arithmetic: Arithmetic,
    measures_extents: bool = False,
) -> CompiledProgram:
    """Load the program of a key; the graph is built only if the program is not on disk."""
    key = _STORE.make_key(key, str(arithmetic), *(["extents"] if measures_extents else []))

    def lower() -> LoweredKernel:
        return KernelLowering(build_graph(), arithmetic, measures_extents).lower_kernel()

    if key not in _loaded_programs:
        _loaded_programs[key] = CompiledProgram(_STORE, key, lower)
    return _loaded_programs[key]


def list_loaded_programs() -> dict[str, bool]:
    """List the keys of the programs in this process, and whether each is compiled thoroughly."""
    return {key: program.thorough for key, program in _loaded_programs.items()}


def preload_programs(keys: dict[str, bool]) -> None:
    """Load programs that a fork of this process needed, if they are on disk."""
    for key, thorough in keys.items():
        known = _loaded_programs.get(key)
        if known is None and len(_loaded_programs) >= _MAX_LOADED_PROGRAMS:
            continue
        is_better = known is None or thorough > known.thorough
        if is_better and _STORE.is_stored(key, thorough):
            _loaded_programs[key] = CompiledProgram(_STORE, key, _raise_missing_program, thorough)


def _raise_missing_program() -> LoweredKernel:
    raise FileNotFoundError("a program that was on disk a moment ago")
