"""Launches under check on a CPU: Triton's own kernels, compiled with every check built in.

While a launcher is open it replaces `JITFunction.run`. A kernel's IR, which Triton would compile
for a GPU, is compiled for this machine and run one program after the other. The first violation
ends the launch; its report becomes an exception (`violation_report`).
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from harness.device import graphs
from harness.kernels import cpu
from harness.kernels.check import line_tracing
from harness.kernels.check.launch_log import KernelLaunch, LaunchLog, to_full_grid
from harness.kernels.check.program_order import ProgramOrder
from harness.kernels.check.region_tables import RaceShadows, RegionTables
from harness.kernels.check.tracked_memory import (
    MemoryTracker,
    ProgramId,
    TensorSpan,
    is_in_host_memory,
)
from harness.kernels.check.violation_report import ViolationReport
from harness.kernels.check.violations import DataRace, UncheckableKernel, Violation
from harness.kernels.cpu.abi import (
    MAX_OVERFLOWS,
    LaunchField,
    OverflowField,
    RegionField,
    ReportField,
    UndefinedResult,
)
from harness.kernels.cpu.lowering import LoweredKernel
from harness.kernels.ir.graph import FileLine, KernelGraph, ValueType
from harness.kernels.triton import (
    adapter,
    frontend,
    graph_loader,
    recorded_reach,
    specialization,
)
from harness.kernels.triton.frontend import BoundCall, CallBinder, RuntimeArgument

_SMALLEST_SCRATCH = 1 << 16
_UINT64_MASK = (1 << 64) - 1


class _ProcessState:
    """Buffers that all sessions of a process share."""

    def __init__(self) -> None:
        self.shadows = RaceShadows()
        self.program_order = ProgramOrder()
        self.overflows = np.zeros((MAX_OVERFLOWS, len(OverflowField)), dtype=np.int64)
        self.context = (ctypes.c_uint64 * len(LaunchField))()
        self.report = (ctypes.c_int64 * len(ReportField))()
        self.next_program = 1  # a number that no earlier program has
        self._scratch = np.empty(_SMALLEST_SCRATCH, dtype=np.uint8)
        self.ran_flags = np.zeros(256, dtype=np.uint8)  # a flag for each block of a kernel

    def reserve_ran_flags(self, count: int) -> int:
        if len(self.ran_flags) < count:
            self.ran_flags = np.zeros(count, dtype=np.uint8)
        return int(self.ran_flags.ctypes.data)

    def reserve_scratch(self, size: int) -> int:
        if len(self._scratch) < size:
            self._scratch = np.empty(size, dtype=np.uint8)
        address = int(self._scratch.ctypes.data)
        return address + -address % 64


_process_state: _ProcessState | None = None


def load_process_state() -> _ProcessState:
    global _process_state
    cpu.get_jit()
    if _process_state is None:
        _process_state = _ProcessState()
    return _process_state


class CpuLauncher:
    """Launches kernels under check while it is open."""

    graph_variant = "whole"  # the kind of graph that `build_graph` returns, for cache keys

    def __init__(
        self,
        memory: MemoryTracker,
        launches: LaunchLog,
        exact: bool,
        trust_loaded_pointers: bool = False,
    ) -> None:
        self._memory = memory
        self._exact = exact  # exact products of float32, where a GPU uses tf32
        self._trust_loaded_pointers = trust_loaded_pointers  # allows any address that kernels load
        self._launches = launches
        self._current_launch: KernelLaunch | None = None
        self.watched_lines: frozenset[FileLine] | None = None  # lines to report overflow in

    def __enter__(self) -> CpuLauncher:
        if adapter.is_interpreting():
            raise UncheckableKernel("Triton is interpreting: start without TRITON_INTERPRET")
        self._process_state = load_process_state()
        launcher = self

        def launch_kernel(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
            if not warmup:
                name = f"{kernel.fn.__module__}.{kernel.fn.__qualname__}"
                graphs.run_captured(name, launcher.launch, kernel, args, grid, options)

        self._patches = contextlib.ExitStack()
        self._patches.enter_context(adapter.run_launches_with(launch_kernel))
        return self

    def __exit__(self, *error: object) -> None:
        self._patches.close()

    def launch(
        self, kernel: Any, args: tuple[Any, ...], grid: Any, options: dict[str, Any]
    ) -> None:
        name = str(kernel.fn.__name__)
        if self._current_launch is not None:
            raise UncheckableKernel(f"{name}: a launch inside a launch")
        names = kernel.signature.parameters
        options = {key: value for key, value in options.items() if key in names}
        for hook in kernel.pre_run_hooks:
            hook(*args, **options)
        binder = frontend.get_binder(kernel)
        with torch._C.DisableTorchFunction():
            bound = self.bind_call(binder, args, options)
        sides = grid(dict(bound.values)) if callable(grid) else grid
        launch = KernelLaunch(name, to_full_grid(sides), dict(bound.values), kernel.fn.__module__)
        self._current_launch = launch
        try:
            with torch._C.DisableTorchFunction():
                self._launches.begin_launch(launch, self._memory)
                self._run_programs(launch, kernel, binder, bound)
        except (Violation, UncheckableKernel) as error:
            self._launches.errors.append(error)
            if isinstance(error, UncheckableKernel) and recorded_reach.is_recording():
                recorded_reach.record_refusal(kernel, str(error))
            raise
        finally:
            self._current_launch = None
            self._launches.end_launch(launch)

    def _get_program(
        self, name: str, kernel: Any, binder: CallBinder, bound: BoundCall
    ) -> tuple[cpu.CompiledProgram, tuple[RuntimeArgument, ...]]:
        """Return the program for a call, and the constants that it takes as arguments."""
        key = (bound.key, self._exact, self.graph_variant)
        program: tuple[cpu.CompiledProgram, tuple[RuntimeArgument, ...]] | None
        program = binder.programs.get(key)
        if program is None:
            try:
                program = binder.programs[key] = self.make_program(kernel, binder, bound)
            except Exception as error:
                raise UncheckableKernel(
                    f"{name}: the checker cannot follow it: {_describe_error(error)}"
                ) from error
        return program

    def make_program(
        self, kernel: Any, binder: CallBinder, bound: BoundCall
    ) -> tuple[cpu.CompiledProgram, tuple[RuntimeArgument, ...]]:
        shared = self.specialize_call(kernel, binder, bound)
        key = (shared.key, self._exact, self.graph_variant)
        known = binder.programs.get(key)
        if known is None:
            program = cpu.load_program(
                f"{self.graph_variant} {frontend.compute_cache_key(kernel, shared)}",
                lambda: self.build_graph(kernel, shared),
                self._exact,
            )
            known = binder.programs[key] = program, ()
        return known[0], shared.symbolic_arguments

    def bind_call(
        self, binder: CallBinder, args: tuple[Any, ...], options: dict[str, Any]
    ) -> BoundCall:
        return binder.bind(args, options)

    def specialize_call(self, kernel: Any, binder: CallBinder, bound: BoundCall) -> BoundCall:
        return specialization.specialize_call(kernel, binder, bound)

    def build_graph(self, kernel: Any, bound: BoundCall) -> KernelGraph:
        return graph_loader.load_graph(kernel, bound)

    def _run_programs(
        self, launch: KernelLaunch, kernel: Any, binder: CallBinder, bound: BoundCall
    ) -> None:
        """Run the launch; if races are ignored, run one with a race again program by program."""
        chosen = self._launches.get_chosen_programs(launch)
        try:
            self._run_launch(launch, kernel, binder, bound, chosen)
        except DataRace:
            if not self._launches.ignores_races:
                raise
            for program in self._launches.list_programs(launch):
                self._run_launch(launch, kernel, binder, bound, (program,))

    def _run_launch(
        self,
        launch: KernelLaunch,
        kernel: Any,
        binder: CallBinder,
        bound: BoundCall,
        chosen: tuple[ProgramId, ...] | None,
    ) -> None:
        if chosen is not None and not chosen:
            return  # no program runs, so none is compiled
        process = self._process_state
        program, numbers = self._get_program(launch.kernel, kernel, binder, bound)
        lowered = program.lowered
        values, spans = self._encode_arguments(
            launch, (*bound.runtime_arguments(), *numbers), lowered
        )
        programs = range(launch.program_count) if chosen is None else chosen
        process.shadows.begin_launch()
        tables = RegionTables(
            lowered,
            spans,
            None if self._trust_loaded_pointers else list(self._memory.iterate_living()),
            programs,
            process.shadows,
            lambda number: _to_coordinates(number, launch.grid),
        )
        arguments = struct.pack(f"<{len(values)}Q", *values)
        regions = struct.pack(f"<{len(tables.parameter_regions)}q", *tables.parameter_regions)
        storages = struct.pack(f"<{len(tables.storage_regions)}q", *tables.storage_regions)
        named = (
            struct.pack(f"<{3 * len(chosen)}q", *(side for one in chosen for side in one))
            if chosen
            else b""
        )
        watched = self.watched_lines or ()
        counting = bytes((one.source.file, one.source.line) in watched for one in lowered.sites)
        context = process.context
        context[:] = [
            *launch.grid,
            _address_of_bytes(named) if chosen else 0,
            len(programs),
            process.reserve_scratch(lowered.scratch_size + 64),
            ctypes.addressof(process.report),
            _address_of_bytes(arguments),
            _address_of_bytes(regions),
            _address_of_bytes(storages),
            len(tables.storage_regions) // len(RegionField),
            process.next_program,
            0,
            process.overflows.ctypes.data,
            0,
            0,
            process.reserve_ran_flags(len(lowered.block_lines)),
            _address_of_bytes(counting) if self.watched_lines is not None else 0,
            process.program_order.log_address if lowered.uses_atomic_results else 0,
            0,
            lowered.uses_atomic_results and not lowered.has_unseen_synchronization,
            process.program_order.query_address,
            *[0] * 4,
        ]
        if lowered.uses_atomic_results:
            process.program_order.begin_launch(lowered.sites, process.next_program, len(programs))
        process.next_program += len(programs) + 1
        is_tracing, is_recording = sys.gettrace() is not None, recorded_reach.is_recording()
        if is_tracing or is_recording:
            process.ran_flags[:] = 0
        violated = program.launch(ctypes.addressof(context))
        if is_tracing or is_recording:
            lines = [
                line
                for block, ran in zip(lowered.block_lines, process.ran_flags, strict=False)
                for line in (block if ran else ())
            ]
            if is_recording:
                recorded_reach.record_reach(kernel, lines)
            if is_tracing:
                line_tracing.trace_lines(lines)
        if violated:
            raise self._make_report(
                launch, lowered, spans, tables, programs, _address_of_bytes(regions)
            ).build_violation()
        if context[LaunchField.UNDEFINED_RESULT]:
            what = UndefinedResult(int(context[LaunchField.UNDEFINED_RESULT])).description
            raise UncheckableKernel(f"{launch.kernel}: {what}")

    def _make_report(
        self,
        launch: KernelLaunch,
        lowered: LoweredKernel,
        spans: list[TensorSpan | None],
        tables: RegionTables,
        programs: Sequence[int] | Sequence[ProgramId],
        regions: int,
    ) -> ViolationReport:
        context = self._process_state.context
        first = int(context[LaunchField.FIRST_PROGRAM])
        numbers = tuple(self._process_state.report)
        overflows = self._process_state.overflows

        def program_of(number: int) -> ProgramId:
            chosen = programs[number - first]
            return _to_coordinates(chosen, launch.grid) if isinstance(chosen, int) else chosen

        table, size = int(context[LaunchField.STORAGES]), len(RegionField) * 8
        place = (numbers[ReportField.REGION] - table) // size
        inside = numbers[ReportField.REGION] >= table and place < len(tables.known_storages)
        return ViolationReport(
            launch.kernel,
            numbers,
            lowered.sites,
            tuple(spans),
            tables.known_storages[place] if inside else None,
            self._memory,
            program_of,
            lambda number: tuple(int(one) for one in overflows[number]),
        )

    # Arguments

    def _encode_arguments(
        self, launch: KernelLaunch, arguments: Iterable[RuntimeArgument], lowered: LoweredKernel
    ) -> tuple[list[int], list[TensorSpan | None]]:
        """Return each argument as 64 bits, and for a pointer the memory that it may reach."""
        values: list[int] = []
        spans: list[TensorSpan | None] = []
        kinds = iter(lowered.parameter_types)
        for argument in arguments:
            if argument.type.startswith("tensordesc"):
                self._encode_descriptor(argument, kinds, values, spans)
                continue
            kind = next(kinds)
            value = argument.value
            span = None
            if kind.is_pointer and not isinstance(value, int):
                span = self._get_span(argument.name, value, kind)
                value = span.start
                if self.watched_lines is not None:  # overflow elsewhere may lead anywhere
                    span = replace(span, start=span.storage.start, end=span.storage.end)
            values.append(_encode_value(value, kind.element))
            spans.append(span)
        if len(values) != len(lowered.parameter_types):
            counts = f"{len(values)} values for {len(lowered.parameter_types)} parameters"
            raise UncheckableKernel(f"{launch.kernel}: the checker cannot follow it: {counts}")
        return values, spans

    def _get_span(self, name: str, value: Any, value_type: ValueType) -> TensorSpan:
        base = getattr(value, "base", value)  # the tensor under a reinterpreted one
        if not isinstance(base, torch.Tensor):
            raise UncheckableKernel(f"{name} is {type(value).__name__}, and not a tensor")
        if not is_in_host_memory(base):
            raise UncheckableKernel(f"{name} is on {base.device}: kernels run on the CPU here")
        size = 8 if value_type.pointee.startswith("ptr<") else cpu.size_of(value_type.pointee)
        return self._memory.make_span(base, name, size)

    def _encode_descriptor(
        self,
        argument: RuntimeArgument,
        parameter_types: Iterator[ValueType],
        values: list[int],
        spans: list[TensorSpan | None],
    ) -> None:
        """Encode a host's descriptor as the arguments that Triton passes in its place."""
        base, *rest = adapter.expand_descriptor(argument.value)
        span = self._get_span(argument.name, base, next(parameter_types))
        values += [span.start, *(_encode_value(one, next(parameter_types).element) for one in rest)]
        spans += [span, *[None] * len(rest)]


def _address_of_bytes(packed: bytes) -> int:
    """Return the address of bytes, which must live as long as it is used."""
    return ctypes.cast(ctypes.c_char_p(packed), ctypes.c_void_p).value or 0


def _to_coordinates(number: int, grid: ProgramId) -> ProgramId:
    rest, z = divmod(number, grid[2])
    x, y = divmod(rest, grid[1])
    return x, y, z


def _encode_value(value: Any, element: str) -> int:
    if element[0] == "i" or element.startswith("ptr<"):
        return int(value) & _UINT64_MASK
    form = {"f16": "<e", "f32": "<f", "f64": "<d"}.get(element)
    if element == "bf16":
        return struct.unpack("<I", struct.pack("<f", float(value)))[0] >> 16  # type: ignore[no-any-return]
    if form is None:
        raise UncheckableKernel(f"an argument of type {element}")
    return int.from_bytes(struct.pack(form, float(value)), "little")


def _describe_error(error: Exception) -> str:
    text = str(error).strip()
    if isinstance(error, cpu.UnsupportedOnCpu):
        return text
    return f"Triton refuses it: {type(error).__name__}: {text}"
