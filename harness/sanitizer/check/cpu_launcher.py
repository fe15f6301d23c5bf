"""Launches under check on a CPU: Triton's own kernels, compiled with every check built in.

While a launcher is open it replaces `JITFunction.run`. A kernel's IR, which Triton would compile
for a GPU, is compiled for this machine and run one program after the other. Reports become
exceptions (`violations`). The last one that the session asks for, by default the first, ends the
launch and is raised; the ones before it are kept until the session ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from harness.sanitizer.check import interrupts, launch_arguments, launch_capture, launch_limits
from harness.sanitizer.check.cpu_facts import CpuFacts
from harness.sanitizer.check.launch_log import KernelLaunch, LaunchLog, to_coordinates, to_full_grid
from harness.sanitizer.check.launcher_state import load_launcher_state
from harness.sanitizer.check.options import CheckOptions
from harness.sanitizer.check.program_order import NEARLY_ORDERED
from harness.sanitizer.check.region_tables import RegionTables
from harness.sanitizer.check.repeated_launch import HARMLESS_READ, is_harmless_read, keep_memory
from harness.sanitizer.check.tracked_memory import MemoryTracker, ProgramId, TensorSpan
from harness.sanitizer.check.tuning import make_configuration_check
from harness.sanitizer.cpu import program_cache
from harness.sanitizer.cpu.abi import (
    KINDS_PER_SITE,
    LaunchField,
    RegionField,
    ReportField,
    UndefinedResult,
)
from harness.sanitizer.cpu.lowering import LoweredKernel
from harness.sanitizer.cpu.program_cache import CompiledProgram
from harness.sanitizer.device import graphs
from harness.sanitizer.gpu.kernel_summaries import find_place
from harness.sanitizer.ir.graph import FileLine, KernelGraph
from harness.sanitizer.llvm.number_formats import UnsupportedOnCpu
from harness.sanitizer.triton import (
    adapter,
    compiled_kernels,
    frontend,
    graph_loader,
    recorded_reach,
    specialization,
)
from harness.sanitizer.triton.compiled_kernels import LaunchedKernel
from harness.sanitizer.triton.frontend import BoundCall, CallBinder, RuntimeArgument
from harness.sanitizer.violations.exceptions import UncheckableKernel, Violation
from harness.sanitizer.violations.kinds import RACES, ViolationKind
from harness.sanitizer.violations.sentences import build_violation

_LAUNCH_LOCK = threading.RLock()


class CpuLauncher:
    """Launches kernels under check while it is open."""

    graph_variant = "whole"  # the kind of graph that `build_graph` returns, for cache keys
    measures_extents = False  # of 32-bit integers in addresses, for `report_extents`

    def __init__(
        self,
        memory: MemoryTracker,
        launches: LaunchLog,
        options: CheckOptions,
        trust_loaded_pointers: bool = False,
    ) -> None:
        self._memory = memory
        self._options = options
        self._trust_loaded_pointers = trust_loaded_pointers  # allows any address that kernels load
        self._launches = launches
        self._current_launch: KernelLaunch | None = None
        self.watched_lines: frozenset[FileLine] | None = None  # lines to report overflow in

    def __enter__(self) -> CpuLauncher:
        if adapter.is_interpreting():
            raise UncheckableKernel("Triton is interpreting: start without TRITON_INTERPRET")
        self._state = load_launcher_state()
        launcher = self

        def launch_kernel(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
            if warmup:
                return compiled_kernels.compile_for_card(kernel, args, options)
            name = f"{kernel.fn.__module__}.{kernel.fn.__qualname__}"
            graphs.run_captured_kernel(name, launcher.launch, kernel, args, grid, options)
            return LaunchedKernel(kernel, args, options)

        self._patches = contextlib.ExitStack()
        self._patches.enter_context(
            adapter.run_launches_with(
                launch_kernel,
                make_configuration_check(self),
                self._launches.configuration_counts.__setitem__,
                self._options.all_configurations,
            )
        )
        return self

    def __exit__(self, *error: object) -> None:
        self._patches.close()

    def launch(
        self, kernel: Any, args: tuple[Any, ...], grid: Any, options: dict[str, Any]
    ) -> None:
        """Launch a kernel; one thread at a time, since all launches share the process's buffers."""
        with _LAUNCH_LOCK:
            self._launch_alone(kernel, args, grid, options)

    def _launch_alone(
        self, kernel: Any, args: tuple[Any, ...], grid: Any, options: dict[str, Any]
    ) -> None:
        name = str(kernel.fn.__name__)
        if self._current_launch is not None:
            raise UncheckableKernel(f"{name}: a launch inside a launch")
        for hook in kernel.pre_run_hooks:
            hook(*args, **options)
        names = kernel.signature.parameters
        adapter.check_options({key: value for key, value in options.items() if key not in names})
        compiled_kernels.show_to_hooks(kernel, args, options)
        binder = frontend.get_binder(kernel)
        with torch._C.DisableTorchFunction():
            bound = self.bind_call(binder, args, options)
        sides = grid(dict(bound.values)) if callable(grid) else grid
        launch = KernelLaunch(
            name,
            to_full_grid(sides),
            dict(bound.values),
            kernel.fn.__module__,
            find_place(kernel.fn),
            adapter.is_in_debug_mode(kernel, options),
            options={key: value for key, value in options.items() if key not in names},
        )
        binder.record(bound, launch.grid)
        launch_limits.refuse_grid(launch)
        if self._memory.is_of_device:
            launch_limits.refuse_host_memory(launch)
        launched = LaunchedKernel(kernel, args, options)
        with compiled_kernels.call_launch_hooks(launched, sides, launch.arguments):
            self._run_launch(launch, kernel, binder, bound)

    def _run_launch(
        self, launch: KernelLaunch, kernel: Any, binder: CallBinder, bound: BoundCall
    ) -> None:
        with torch._C.DisableTorchFunction():
            launch_capture.capture_launch(kernel, dict(bound.values), launch.grid, bound.key)
        self._current_launch = launch
        try:
            with torch._C.DisableTorchFunction():
                self._launches.begin_launch(launch, self._memory)
                violations = self._run_programs(launch, kernel, binder, bound)
        except UncheckableKernel as error:
            launch.refusal = str(error)
            self._launches.errors.append(error)
            if recorded_reach.is_recording():
                recorded_reach.record_refusal(kernel, str(error))
            raise
        except Exception:  # as on a card, nothing is launched
            self._launches.drop_launch(launch)
            raise
        finally:
            self._current_launch = None
            self._launches.end_launch(launch)
        last = self._launches.add_violations(violations, self._options.max_reports)
        try:
            if last is not None:
                raise last
        finally:  # an error whose frame refers to it would keep the tensors alive
            del last, violations

    def get_program(
        self, name: str, kernel: Any, binder: CallBinder, bound: BoundCall
    ) -> tuple[CompiledProgram, tuple[RuntimeArgument, ...]]:
        """Return the program for a call, and the constants that it takes as arguments."""
        key = (bound.key, self._options.arithmetic, self.measures_extents, self.graph_variant)
        program: tuple[CompiledProgram, tuple[RuntimeArgument, ...]] | None
        program = binder.programs.get(key)
        if program is None:
            try:
                program = binder.programs[key] = self.make_program(kernel, binder, bound)
            except Exception as error:
                if compiled_kernels.is_raised_by_triton(error):
                    raise
                raise UncheckableKernel(
                    f"{name}: the checker cannot follow it: {_describe_error(error)}"
                ) from error
        return program

    def make_program(
        self, kernel: Any, binder: CallBinder, bound: BoundCall
    ) -> tuple[CompiledProgram, tuple[RuntimeArgument, ...]]:
        shared = self.specialize_call(kernel, binder, bound)
        key = (shared.key, self._options.arithmetic, self.measures_extents, self.graph_variant)
        known = binder.programs.get(key)
        if known is None:
            program = program_cache.load_program(
                f"{self.graph_variant} {frontend.compute_cache_key(kernel, shared)}",
                lambda: self.build_graph(kernel, shared),
                self._options.arithmetic,
                self.measures_extents,
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
    ) -> list[Violation]:
        chosen = self._launches.get_chosen_programs(launch)
        if chosen is not None and not chosen:
            return []  # no program runs, so none is compiled
        process = self._state
        program, numbers = self.get_program(launch.kernel, kernel, binder, bound)
        lowered = program.lowered
        launch_limits.refuse_shared_memory(launch, lowered, kernel)
        launch.approximations = lowered.approximations
        values, spans = self._encode_arguments(
            launch, (*bound.runtime_arguments(), *numbers), lowered
        )
        program_count = launch.program_count if chosen is None else len(chosen)

        def get_program(ordinal: int) -> ProgramId:
            return to_coordinates(ordinal, launch.grid) if chosen is None else chosen[ordinal]

        tables = RegionTables(
            lowered,
            spans,
            None if self._trust_loaded_pointers else self._memory.iterate_living,
            program_count,
            get_program,
            process.shadows,
        )
        arguments = struct.pack(f"<{len(values)}Q", *values)
        regions = struct.pack(f"<{len(tables.parameter_regions)}q", *tables.parameter_regions)
        storages = struct.pack(f"<{len(tables.storage_regions)}q", *tables.storage_regions)
        coordinates = [place for program in chosen or () for place in program]
        chosen_programs = struct.pack(f"<{len(coordinates)}q", *coordinates)
        watched = self.watched_lines or ()
        watched_sites = bytes(site.source.line_key in watched for site in lowered.sites)
        states = np.zeros((len(lowered.sites), KINDS_PER_SITE), dtype=np.uint8)
        extents = np.zeros(len(lowered.sites), dtype=np.int64)
        fields = {
            LaunchField.GRID_X: launch.grid[0],
            LaunchField.GRID_Y: launch.grid[1],
            LaunchField.GRID_Z: launch.grid[2],
            LaunchField.CHOSEN_PROGRAMS: launch_arguments.address_of_bytes(chosen_programs)
            if chosen
            else 0,
            LaunchField.PROGRAM_COUNT: program_count,
            LaunchField.SCRATCH: process.reserve_scratch(lowered.scratch_size + 64),
            LaunchField.REPORTS: process.reports.ctypes.data,
            LaunchField.ARGUMENTS: launch_arguments.address_of_bytes(arguments),
            LaunchField.REGIONS: launch_arguments.address_of_bytes(regions),
            LaunchField.STORAGES: launch_arguments.address_of_bytes(storages),
            LaunchField.STORAGE_COUNT: len(tables.storage_regions) // len(RegionField),
            LaunchField.OVERFLOWS: process.overflows.ctypes.data,
            LaunchField.RAN_FLAGS: process.reserve_ran_flags(len(lowered.block_lines)),
            LaunchField.REPORT_LIMIT: self._options.max_reports,
            LaunchField.REPORT_STATES: states.ctypes.data,
            LaunchField.ORDER_QUERY: process.program_order.query_address,
        }
        if self.watched_lines is not None:
            fields[LaunchField.WATCHED_SITES] = launch_arguments.address_of_bytes(watched_sites)
        if self.measures_extents:
            fields[LaunchField.EXTENTS] = extents.ctypes.data
        if lowered.uses_atomic_results:
            fields[LaunchField.ATOMIC_LOG] = process.program_order.log_address
            fields[LaunchField.READS_RACE] = not lowered.has_unseen_synchronization
        context = process.context

        def run_programs() -> list[list[int]]:
            first = fields[LaunchField.FIRST_PROGRAM] = process.next_program
            if lowered.uses_atomic_results:
                process.program_order.begin_launch(lowered.sites, first, program_count)
            states[:] = self._options.make_report_states(len(states), self._launches.ignores_races)
            context[:] = [fields.get(field, 0) for field in range(len(LaunchField))]  # type: ignore[call-overload]
            process.next_program += program_count + 1
            program.launch(ctypes.addressof(context))
            interrupts.raise_if_interrupted(context)
            return process.read_reports()

        interrupts.watch_context(context)
        kept = keep_memory(lowered, spans) if self._options.max_reports > 1 else None
        begun = time.perf_counter()
        try:
            with process.observe_lines(kernel, lowered.block_lines):
                reports = run_programs()
        finally:
            launch.seconds = time.perf_counter() - begun
        if self.measures_extents:
            self.report_extents(lowered, extents.tolist())
        read_report = self._make_report_reader(launch, lowered, spans, tables, get_program)
        undefined = int(context[LaunchField.UNDEFINED_RESULT])
        reads_in_vain = is_harmless_read(kept, reports, self._options.max_reports, run_programs)
        errors = [read_report(report, reads_in_vain) for report in reports]
        for error in errors:
            if isinstance(error, UncheckableKernel):
                raise error
        if undefined:
            what = UndefinedResult(undefined).description
            raise UncheckableKernel(f"{launch.kernel}: {what}")
        return [error for error in errors if isinstance(error, Violation)]

    def report_extents(self, lowered: LoweredKernel, extents: list[int]) -> None:
        """Receive for each site the largest 32-bit integer on the way into its addresses."""

    def _make_report_reader(
        self,
        launch: KernelLaunch,
        lowered: LoweredKernel,
        spans: list[TensorSpan | None],
        tables: RegionTables,
        get_program: Callable[[int], ProgramId],
    ) -> Callable[[list[int], bool], Exception]:
        """Return the function from a report's numbers to what it reports."""
        context, nearly = self._state.context, {*self._state.program_order.nearly_ordered}
        first, table = int(context[LaunchField.FIRST_PROGRAM]), int(context[LaunchField.STORAGES])

        def read_report(numbers: list[int], reads_in_vain: bool) -> Exception:
            program = first + numbers[ReportField.ORDINAL]
            numbers[ReportField.X : ReportField.Z + 1] = get_program(numbers[ReportField.ORDINAL])
            region = numbers[ReportField.REGION]
            place = (region - table) // (len(RegionField) * 8)
            inside = region >= table and place < len(tables.known_storages)
            facts = CpuFacts(
                launch.kernel,
                numbers,
                lowered.sites,
                spans,
                tables.known_storages[place] if inside else None,
                self._memory,
                lambda number: get_program(number - first),
            )
            facts.in_debug_mode = launch.in_debug_mode
            if facts.kind is ViolationKind.UNINITIALIZED_READ and reads_in_vain:
                facts.harmless = HARMLESS_READ
            elif facts.kind in RACES.values() and (numbers[ReportField.OTHER], program) in nearly:
                facts.harmless = NEARLY_ORDERED
            violation = build_violation(facts)
            if isinstance(violation, Violation):
                violation.is_warning = facts.is_warning
            return violation

        return read_report

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
                launch_arguments.encode_descriptor(self._memory, argument, kinds, values, spans)
                continue
            kind = next(kinds)
            value = argument.value
            span = None
            if kind.is_pointer and not isinstance(value, int):
                name = argument.name
                value, span = launch_arguments.find_span(self._memory, name, value, kind)
                # Overflow outside of the watched lines may lead anywhere.
                if self.watched_lines is not None or self._options.allows_storage(launch.kernel):
                    span = replace(span, start=span.storage.start, end=span.storage.end)
            values.append(launch_arguments.encode_value(value, kind.element))
            spans.append(span)
        if len(values) != len(lowered.parameter_types):
            counts = f"{len(values)} values for {len(lowered.parameter_types)} parameters"
            raise UncheckableKernel(f"{launch.kernel}: the checker cannot follow it: {counts}")
        return values, spans


def _describe_error(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, UnsupportedOnCpu) else f"{type(error).__name__}: {text}"
