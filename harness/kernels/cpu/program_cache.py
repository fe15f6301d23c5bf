"""A kernel's compiled program: made of its graph once, kept on disk, loaded once a process.

A process that forks others may load what one of them needed: the next ones have it from the start.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from harness.core.cache import get_or_compute, is_cached
from harness.core.code_digest import digest_code
from harness.kernels.cpu import access_checks
from harness.kernels.cpu.llvm_jit import LlvmJit, describe_host
from harness.kernels.cpu.lowering import KernelLowering, LoweredKernel
from harness.kernels.ir.graph import KernelGraph

CODE_DIGEST = digest_code("kernels")
_LAUNCH_SIGNATURE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)


_RECOMPILE_AFTER_SECONDS = 0.25  # seconds of running: what a thorough compilation costs


@dataclass(frozen=True, slots=True)
class _StoredProgram:
    lowered: LoweredKernel
    code: bytes


class CompiledProgram:
    """What is known of a compiled kernel, and how it is launched.

    Most kernels of a suite run for milliseconds in all, so they are compiled quickly. One that has
    run for long enough to make up for it is compiled again, thoroughly, for every later process.
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
    return hashlib.sha256("\0".join([*describe_host(), CODE_DIGEST]).encode()).hexdigest()


@functools.cache
def get_jit() -> LlvmJit:
    """The machine, with the functions that all kernels call. After a fork it is still there."""
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


_MAX_LOADED_PROGRAMS = 1000  # programs that a process has ready for its forks
_loaded_programs: dict[str, CompiledProgram] = {}


def load_program(key: str, build_graph: Callable[[], KernelGraph], exact: bool) -> CompiledProgram:
    """The program of this key; the graph is asked for only where it has to be made."""
    key = hashlib.sha256(f"{key} {_hash_host()} {exact}".encode()).hexdigest()

    def made() -> _StoredProgram:
        lowered = KernelLowering(build_graph(), exact).lower_kernel()
        return _StoredProgram(lowered, get_jit().compile_object(lowered.text, thorough=False))

    if key not in _loaded_programs:
        thorough = is_cached(_CACHE_CATEGORIES[True], key)
        _loaded_programs[key] = CompiledProgram(
            key, get_or_compute(_CACHE_CATEGORIES[thorough], key, made), thorough
        )
    return _loaded_programs[key]


def list_loaded_programs() -> dict[str, bool]:
    """The programs of this process by their keys, and which are thorough."""
    return {key: program.thorough for key, program in _loaded_programs.items()}


def preload_programs(keys: dict[str, bool]) -> None:
    """Have ready what a fork of this process needed; what is not on disk stays out."""
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
    raise FileNotFoundError("a program that was kept a moment ago")
