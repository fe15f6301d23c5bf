"""Compiled programs: compiled from a graph once, cached on disk, loaded once in a process.

A process that forks others can load the programs that one fork needed (`list_loaded_programs` in
the fork, `preload_programs` in the process), so that the next forks have them from the start.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from harness.core.cache import get_or_compute, is_cached
from harness.core.code_digest import compute_digest, describe_versions, digest_code
from harness.sanitizer.cpu import access_checks
from harness.sanitizer.cpu.arithmetic import Arithmetic
from harness.sanitizer.cpu.lowering import KernelLowering, LoweredKernel
from harness.sanitizer.ir.graph import KernelGraph
from harness.sanitizer.llvm.jit import LlvmJit, describe_host

CODE_DIGEST = digest_code("sanitizer")
_LAUNCH_SIGNATURE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)


_RECOMPILE_AFTER_SECONDS = 0.25  # about the time of a thorough compilation


@dataclass(frozen=True, slots=True)
class _StoredProgram:
    lowered: LoweredKernel
    code: bytes


class CompiledProgram:
    """A compiled kernel, loaded into this process.

    Most kernels of a suite run for milliseconds in all, so they are compiled quickly. A kernel that
    has run for 0.25 s is compiled again, thoroughly, for this and every later process.
    """

    def __init__(self, key: str, stored: _StoredProgram, thorough: bool) -> None:
        self.lowered = stored.lowered
        self.thorough = thorough
        self._key = key
        self._seconds_run = 0.0
        self._function = _load_launch_function(stored.code)

    def launch(self, context: int) -> int:
        start = perf_counter()
        wrong = self._function(context)
        self._seconds_run += perf_counter() - start
        if self._seconds_run > _RECOMPILE_AFTER_SECONDS and not self.thorough:
            self.thorough = True
            self._function = _load_launch_function(
                _compile_program(self._key, self.lowered, True).code
            )
        return wrong


def _load_launch_function(code: bytes) -> Callable[[int], int]:
    return _LAUNCH_SIGNATURE(get_jit().load_functions(code, "launch")[0])


def _compile_program(key: str, lowered: LoweredKernel, thorough: bool) -> _StoredProgram:
    machine = get_jit()
    return get_or_compute(
        _CACHE_CATEGORIES[thorough],
        key,
        lambda: _StoredProgram(lowered, machine.compile_object(lowered.text, thorough)),
    )


_CACHE_CATEGORIES = {False: "programs", True: "thorough"}


@functools.cache
def _hash_host() -> str:
    return compute_digest(*describe_host(), describe_versions(("llvmlite",)), CODE_DIGEST)


@functools.cache
def get_jit() -> LlvmJit:
    """Return the JIT of this process and its forks, with the functions that all kernels call."""
    machine = LlvmJit()
    code = get_or_compute(
        "accesses",
        _hash_host(),
        lambda: machine.compile_object(access_checks.build_access_module(), thorough=True),
    )
    addresses = machine.load_functions(code, *access_checks.list_access_functions())
    for name, address in zip(access_checks.list_access_functions(), addresses, strict=True):
        machine.add_symbol(name, address)
    return machine


_MAX_LOADED_PROGRAMS = 1000  # in one process
_loaded_programs: dict[str, CompiledProgram] = {}


def load_program(
    key: str,
    build_graph: Callable[[], KernelGraph],
    arithmetic: Arithmetic,
    measures_extents: bool = False,
) -> CompiledProgram:
    """Load the program of a key; the graph is built only if the program is not on disk."""
    words = [key, _hash_host(), str(arithmetic), *(["extents"] if measures_extents else [])]
    key = hashlib.sha256(" ".join(words).encode()).hexdigest()

    def compute_program() -> _StoredProgram:
        lowered = KernelLowering(build_graph(), arithmetic, measures_extents).lower_kernel()
        return _StoredProgram(lowered, get_jit().compile_object(lowered.text, thorough=False))

    if key not in _loaded_programs:
        thorough = is_cached(_CACHE_CATEGORIES[True], key)
        _loaded_programs[key] = CompiledProgram(
            key, get_or_compute(_CACHE_CATEGORIES[thorough], key, compute_program), thorough
        )
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
        if (known is None or thorough > known.thorough) and is_cached(
            _CACHE_CATEGORIES[thorough], key
        ):
            _loaded_programs[key] = CompiledProgram(
                key,
                get_or_compute(_CACHE_CATEGORIES[thorough], key, _raise_missing_program),
                thorough,
            )


def _raise_missing_program() -> _StoredProgram:
    raise FileNotFoundError("a program that was on disk a moment ago")
