"""Runs kernels in PTX on this CPU, under check.

A launch is compiled by LLVM and run block after block; a thread runs until it waits for others. The
first violation ends the launch. What an instruction does is either specified here exactly or
refused by its name: a kernel never runs with a guess.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import math
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from harness.sanitizer.device.cards import (
    BLOCK_LIMITS,
    GRID_LIMITS,
    MAX_THREADS,
    describe_beyond_limits,
)
from harness.sanitizer.llvm.number_formats import UnsupportedOnCpu
from harness.sanitizer.ptx.compiled_kernels import CompiledPtx, compile_kernel, is_compiled
from harness.sanitizer.ptx.cuda_facts import ExecutorFacts
from harness.sanitizer.ptx.instructions import UnsupportedPtx
from harness.sanitizer.ptx.launch import CudaLaunch, ExecutorChecks
from harness.sanitizer.ptx.launch_memory import LaunchMemory
from harness.sanitizer.ptx.lowering import LoweredPtx
from harness.sanitizer.ptx.module_text import PtxText
from harness.sanitizer.ptx.parser import PtxHead, PtxSyntaxError
from harness.sanitizer.ptx.reader import read_kernel
from harness.sanitizer.ptx.variables import place_variables
from harness.sanitizer.violations.exceptions import LaunchRefused, UncheckableKernel
from harness.sanitizer.violations.sentences import build_violation

_SHARED_LIMIT = 48 << 10  # of a block, its own shared memory and what the launch adds
_modules: dict[str, PtxModule] = {}


def load_module(text: str) -> PtxModule:
    """Return the module of a text; the same text gives the same module, with its variables."""
    key = hashlib.sha256(text.encode()).hexdigest()
    if key not in _modules:
        _modules[key] = PtxModule(text, key)
    return _modules[key]


def list_loaded_programs() -> list[LoadedPtx]:
    """List the kernels that this process has loaded, with the text if a preload did not give it."""
    return [
        LoadedPtx(
            key,
            "" if key in _preloaded else module.text,
            [
                (entry, overflow, kernel.thorough)
                for (entry, overflow), kernel in module.compiled.items()
            ],
        )
        for key, module in _modules.items()
        if module.compiled
    ]


def preload_programs(programs: list[Any]) -> None:
    """Load kernels that a fork of this process needed, if they are on disk.

    The programs are those of a JSON text. Nothing is compiled here, where no limit holds.
    """
    for program in msgspec.convert(programs, list[LoadedPtx]):
        if program.text and len(_modules) < _MAX_PRELOADED_MODULES:
            load_module(program.text)
            _preloaded.add(program.key)
        module = _modules.get(program.key)
        if module is None:
            continue
        for entry, overflow, thorough in program.kernels:
            known = module.compiled.get((entry, overflow))
            if (known is None or thorough > known.thorough) and is_compiled(
                program.key, entry, overflow
            ):
                module.compile(entry, overflow)


class LoadedPtx(msgspec.Struct, array_like=True):
    """A module of which a process has loaded kernels."""

    key: str
    text: str
    kernels: list[tuple[str, bool, bool]]  # entry, whether overflow is tracked, compiled thoroughly


_MAX_PRELOADED_MODULES = 300  # in one process
_preloaded: set[str] = set()


class PtxModule:
    """A module in this process: its kernels, and the memory of its variables."""

    def __init__(self, text: str, key: str) -> None:
        self.text, self._key = text, key
        self._ptx: PtxText | None = None
        self.compiled: dict[tuple[str, bool], CompiledPtx] = {}
        self._variables: dict[str, Any] = {}

    @property
    def ptx(self) -> PtxText:
        if self._ptx is None:
            self._ptx = PtxText(self.text)
        return self._ptx

    @property
    def entries(self) -> tuple[str, ...]:
        return tuple(self.ptx.heads)

    def parameter_layout(self, entry: str) -> tuple[tuple[int, int], ...]:
        """Return the offset and the size of each parameter."""
        return tuple(
            (parameter.offset, parameter.size) for parameter in self._get_head(entry).parameters
        )

    def static_shared_bytes(self, entry: str) -> int:
        """Return the bytes of shared memory that the kernel itself declares."""
        kernel = self.ptx.read_kernel(entry)
        return place_variables(self.ptx, kernel, read_kernel(self.ptx, kernel))[1]["shared"]

    def most_threads(self, entry: str) -> int:
        """Return the threads that a block may have; 0 if the kernel sets no limit itself."""
        return min(self._get_head(entry).most_threads or 0, MAX_THREADS)

    def files(self, entry: str) -> frozenset[str]:
        """Return the source files that a kernel's lines are from."""
        statements = self.ptx.read_kernel(entry).statements
        return frozenset(
            location.file for statement in statements for location in statement.source.chain
        )

    def _get_head(self, entry: str) -> PtxHead:
        head = self.ptx.heads.get(entry)
        if head is None:
            raise KeyError(f"no kernel {entry} in this module, which has {', '.join(self.entries)}")
        return head

    # Variables

    def variable_address(self, name: str) -> int:
        """Return the address of a `__device__` or `__constant__` variable."""
        variable = self.ptx.variables.get(name)
        if variable is None or variable.space == "shared":
            raise KeyError(f"no variable {name} in this module")
        if name not in self._variables:
            size = max(variable.size, 1)
            buffer = np.zeros(size + 256, dtype=np.uint8)
            start = -int(buffer.ctypes.data) % 256
            memory = buffer[start : start + size]
            self._variables[name] = memory
            contents = np.frombuffer(variable.contents, dtype=np.uint8)
            memory[: len(contents)] = contents
            for offset, other in variable.references:
                address = self.variable_address(other)
                memory[offset : offset + 8] = np.frombuffer(
                    address.to_bytes(8, "little"), dtype=np.uint8
                )
        return int(self._variables[name].ctypes.data)

    @contextlib.contextmanager
    def _keep_variables(self) -> Iterator[None]:
        """Leave the variables as they were: a sample of blocks counts for less than a launch.

        Example: each block counts itself, and the last one begins anew.
        """
        before = {name: memory.copy() for name, memory in self._variables.items()}
        try:
            yield
        finally:
            for name, contents in before.items():
                self._variables[name][:] = contents

    # Launches

    def run(self, launch: CudaLaunch, checks: ExecutorChecks | None = None) -> list[Exception]:
        """Run a launch; return its violation, if there is one.

        Raises UncheckableKernel, with nothing run, for an instruction that is not specified here.
        """
        checks = checks or ExecutorChecks()
        refusal = self._find_refusal(launch)
        if refusal is not None:
            return [refusal]
        compiled = self._compile(launch, checks)
        compiled.recompile_if_slow()
        lowered = compiled.lowered
        limit = launch.max_shared_bytes or _SHARED_LIMIT - lowered.shared_size
        if launch.shared_bytes > limit:
            size = f"{launch.shared_bytes} bytes of shared memory"
            own = f" beside its own {lowered.shared_size}" if lowered.shared_size else ""
            return [LaunchRefused(f"{launch.name}: {size}{own}, and its limit is {limit}")]
        memory = LaunchMemory(
            launch, lowered, checks, self._list_addresses(lowered), compiled.address
        )
        with self._keep_variables() if launch.chosen_blocks else contextlib.nullcontext():
            violated = compiled.launch(ctypes.addressof(memory.context))
        memory.finish()
        self.last_memory = memory
        return [build_violation(ExecutorFacts(memory))] if violated else []

    def _compile(self, launch: CudaLaunch, checks: ExecutorChecks) -> CompiledPtx:
        key = launch.entry, checks.overflow
        if key not in self.compiled:
            try:
                self.compile(launch.entry, checks.overflow)
            except (UnsupportedPtx, UnsupportedOnCpu, PtxSyntaxError) as error:
                raise UncheckableKernel(f"{launch.name}: not checked: {error}") from error
        return self.compiled[key]

    def compile(self, entry: str, tracks_overflow: bool) -> None:
        """Compile a kernel for this process, or load it from disk."""
        self.compiled[entry, tracks_overflow] = compile_kernel(
            self.ptx, self._key, entry, tracks_overflow
        )

    def _list_addresses(self, lowered: LoweredPtx) -> list[int]:
        return [
            0
            if placed.variable.space in ("shared", "local")
            else self.variable_address(placed.variable.name)
            for placed in lowered.variables
        ]

    def _find_refusal(self, launch: CudaLaunch) -> LaunchRefused | None:
        """Find why CUDA would refuse the launch."""
        if launch.cluster != (1, 1, 1):
            raise UncheckableKernel(f"{launch.name}: not checked: clusters {launch.cluster}")
        threads = math.prod(launch.block)
        for words, sides, limits in (
            ("a grid", launch.grid, GRID_LIMITS),
            ("a block", launch.block, BLOCK_LIMITS),
        ):
            if refusal := describe_beyond_limits(words, sides, limits):
                return LaunchRefused(f"{launch.name}: {refusal}")
        most = self.most_threads(launch.entry) or MAX_THREADS
        if threads > most:
            return LaunchRefused(f"{launch.name}: {threads} threads in a block, and at most {most}")
        return None
