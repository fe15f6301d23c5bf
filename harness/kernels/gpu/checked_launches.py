"""Launches of kernels with checks: what each pointer may reach goes along as an argument.

So a captured launch keeps its extents, and a replay is checked as the first run was. Nothing here
waits for the device: reports are in the host's memory, see `arena`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from triton.runtime.jit import JITFunction

from harness.kernels.gpu import (
    DEFAULT_CHECKS,
    LINE_CHECK,
    SUBGRID_CHECK,
    InstrumentationRequest,
    compiler_hooks,
    inductor,
)
from harness.kernels.gpu.pointer_arguments import (
    PointerArgument,
    find_overlapping_pointers,
    flatten_arguments,
)
from harness.kernels.gpu.report_buffer import DeviceReport, ReportBuffer
from harness.kernels.gpu.shadow_memory import RaceShadowMemory
from harness.kernels.gpu.storage_registry import STORAGE_REGISTRY, track_data_ptr
from harness.kernels.gpu.subgrid import Subgrid
from harness.kernels.ir.graph import bits_of
from harness.kernels.triton import frontend, recorded_launches
from harness.kernels.triton import specialization as loosening
from harness.kernels.triton.specialization import Specialization
from harness.patching import jit_kernels as patching

_CACHE_KEY = (
    "checked by unfix"  # beside the compiled kernels: whoever sets those aside takes it along
)
_REFUSAL_KEY = "why not"
_RULE_REFUSAL_KEY = "why not with fences"
_FIXED_CONSTANTS_KEY = "its constants stay constants"
_MAX_REMEMBERED_LAUNCHES = 1 << 14  # launches; those that a graph captured are remembered for good


@dataclass(slots=True)
class LaunchRecord:
    """A launch as it is remembered: it holds no tensor, nor what could hold one."""

    kernel: str
    pointers: tuple[PointerArgument, ...]
    scalars: dict[str, Any]
    captured: bool
    server_phase: str  # in a server: the forward mode and batch
    compiled_kernel: Any = None
    inductor_source: str = ""  # of Inductor's: the function that it compiled

    def __str__(self) -> str:
        words = [*map(str, self.pointers), *(f"{k} {v}" for k, v in self.scalars.items())]
        return ", ".join(words)


@dataclass(slots=True)
class KernelTally:
    """How often a kernel was launched, and why it was not checked, if it was not."""

    launches: int = 0
    refusal: str = ""
    unchecked_accesses: dict[str, int] = field(default_factory=dict)


class ProcessReports:
    """Of this process: what all launchers use again, as kernels are kept with their tables."""

    def __init__(self) -> None:
        self._buffers: dict[int, ReportBuffer] = {}
        self._shadow_memories: dict[int, RaceShadowMemory] = {}
        self._launch_numbers = itertools.count(1)
        self._launch_records: dict[int, LaunchRecord] = {}
        self._eviction_order: deque[int] = deque()

    def allocate_table(self, device: int) -> int | None:
        if device not in self._buffers:
            if torch.cuda.is_current_stream_capturing():
                return None
            self._buffers[device] = ReportBuffer(device)
        return self._buffers[device].allocate_table()

    def upload_storage_table(self, device: int) -> None:
        if not torch.cuda.is_current_stream_capturing():  # a graph reads what is there by then
            self._buffers[device].upload_storage_table()

    def begin_launch(self, device: int, run: Any) -> tuple[int, int] | None:
        """What the next launch's races are told by; None where a graph is captured too early."""
        captured = torch.cuda.is_current_stream_capturing()
        if device not in self._shadow_memories:
            if captured:
                return None
            self._shadow_memories[device] = RaceShadowMemory(f"cuda:{device}")
        return self._shadow_memories[device].begin_launch(run, captured)

    def remember_launch(self, record: LaunchRecord) -> int:
        number = next(self._launch_numbers)
        self._launch_records[number] = record
        if not record.captured:
            self._eviction_order.append(number)
            if len(self._eviction_order) > _MAX_REMEMBERED_LAUNCHES:
                self._launch_records.pop(self._eviction_order.popleft(), None)
        return number

    def read_new_reports(self) -> Iterator[tuple[DeviceReport, LaunchRecord]]:
        """What was put down since the last time, with the launches."""
        for arena in self._buffers.values():
            if arena.has_reports():
                for record in arena.read_new_reports():
                    if record.launch in self._launch_records:
                        yield record, self._launch_records[record.launch]

    def reset(self) -> None:
        for arena in self._buffers.values():
            arena.reset()


PROCESS_REPORTS = ProcessReports()


class CheckedLauncher:
    """Takes the place of `JITFunction.run`, from `start` to `stop`."""

    def __init__(
        self,
        checks: Sequence[str] = DEFAULT_CHECKS,
        describe_server_phase: Callable[[], str] = str,
        strict: bool = False,
        whole_storages: bool = False,
        symbolic_constants: bool = False,
    ) -> None:
        """`whole_storages`: a pointer may go on to the end of what its tensor was cut out of.

        `loosens`: constants that a kernel only computes with are handed over, which saves
        compilations and costs each launch some tens of microseconds.
        """
        self.checks, self._describe_server_phase, self._strict = (
            tuple(checks),
            describe_server_phase,
            strict,
        )
        self._whole_storages, self._symbolic_constants = whole_storages, symbolic_constants
        self._checks_races = "races" in self.checks
        self._checks_without_races = tuple(check for check in self.checks if check != "races")
        self.tally: dict[str, KernelTally] = {}
        # A launch's table of fences, or none; asked while this is set.
        self.build_rule_table: Callable[[Sequence[PointerArgument]], int | None] | None = None
        self.checked_line = 0  # of the source, whose wraps count where a line's alone do
        self.subgrid = Subgrid((0, 0, 0), (0, 0, 0))  # of a grid, where what is launched is one
        self._original_run: Any = None
        self._original_inductor_run: Any = None  # what launched its kernels
        self._original_data_ptr: Any = None

    def start(self) -> None:
        compiler_hooks.install_compiler_hooks()
        self._original_data_ptr = track_data_ptr()
        launcher = self

        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
            with STORAGE_REGISTRY.ignore_address_requests():
                return launcher.run(kernel, args, grid, warmup, options)

        self._original_run = patching.replace_run(JITFunction, run)

    def start_inductor(self) -> None:
        """Inductor's kernels, too, once it is loaded."""
        launcher = self

        def run(tuner: Any, *args: Any, **options: Any) -> Any:
            with STORAGE_REGISTRY.ignore_address_requests():
                return launcher._run_inductor(tuner, args, options)

        if self._original_inductor_run is None:
            self._original_inductor_run = inductor.replace_inductor_run(run)

    def stop(self) -> None:
        patching.replace_run(JITFunction, self._original_run)
        if self._original_inductor_run is not None:
            inductor.replace_inductor_run(self._original_inductor_run)
        if self._original_data_ptr is not None:
            torch.Tensor.data_ptr = self._original_data_ptr

    def find_refusal(self, kernel: Any, with_access_rules: bool = False) -> str:
        """Why this kernel runs without checks, for all that is known; nothing where it does not.

        `fenced`: in a launch with fences.
        """
        if type(kernel) is not JITFunction:
            return f"it is a {type(kernel).__name__}"
        kept = kernel.device_caches.get(_CACHE_KEY, {})
        return str(
            kept.get(_REFUSAL_KEY) or (with_access_rules and kept.get(_RULE_REFUSAL_KEY)) or ""
        )

    def run(
        self, kernel: Any, args: tuple[Any, ...], grid: Any, warmup: bool, options: dict[str, Any]
    ) -> Any:
        def plain() -> Any:
            return self._original_run(kernel, *args, grid=grid, warmup=warmup, **options)

        return (
            plain()
            if warmup
            else self._run_checked(kernel, args, grid, options, plain, self._whole_storages)
        )

    def _run_inductor(self, tuner: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        def plain() -> Any:
            return self._original_inductor_run(tuner, *args, **options)

        named = {name: one for name, one in options.items() if name != "stream"}
        if named.pop("benchmark_run", False):
            return plain()
        try:
            made = inductor.to_triton_launch(tuner, args, named)
        except Exception as error:  # another Inductor, or its own to tell, as it is called
            tally = self.tally.setdefault(inductor.get_kernel_name(tuner), KernelTally())
            tally.launches += 1
            why = str(error).splitlines() or [""]
            unlike = isinstance(error, inductor.UnsupportedInductorLaunch)
            tally.refusal = why[0] if unlike else f"{type(error).__name__}: {why[0]}"
            return plain()
        # It cuts buffers into parts, and hands on views whose strides it knows itself.
        whence = inductor.find_compiled_function()
        return self._run_checked(made.kernel, (), made.grid, made.options, plain, True, whence)

    def _run_checked(
        self,
        kernel: Any,
        args: tuple[Any, ...],
        grid: Any,
        options: dict[str, Any],
        run_unchecked: Callable[[], Any],
        whole_storages: bool,
        inductor_source: str = "",
    ) -> Any:
        if recorded_launches.is_recording():
            frontend.get_binder(kernel).bind(args, options)
        name = str(kernel.fn.__name__)
        tally = self.tally.setdefault(name, KernelTally())
        tally.launches += 1
        if why := self.find_refusal(kernel):
            tally.refusal = why
            return run_unchecked()
        capturing = torch.cuda.is_current_stream_capturing()
        pointers, scalars = flatten_arguments(kernel, args, options, capturing or whole_storages)
        lists = self.build_rule_table(pointers) if self.build_rule_table is not None else None
        fenced = lists is not None
        device = torch.cuda.current_device()
        races = self._begin_race_check(device, options) if self._checks_races else None
        checks = self.checks if races is not None else self._checks_without_races
        checks = checks if lists is None else (*checks, "fences")
        call = self._prepare_call(kernel, args, grid, options)
        asked = InstrumentationRequest(
            len(pointers),
            checks,
            () if races is None else find_overlapping_pointers(pointers),
            call.specialization,
        )
        made = self._get_checked_kernel(kernel, asked, device, tally)
        if made is None:
            return run_unchecked()
        twin, block = made
        PROCESS_REPORTS.upload_storage_table(device)
        note = LaunchRecord(
            name,
            pointers,
            scalars,
            capturing,
            self._describe_server_phase(),
            inductor_source=inductor_source,
        )
        number = PROCESS_REPORTS.remember_launch(note)
        line = (self.checked_line,) if LINE_CHECK in checks else ()
        part = self.subgrid.launch_values if SUBGRID_CHECK in checks else ()
        head = (block, number, *(() if lists is None else (lists,)), *(races or ()), *line, *part)
        extents = (pointer.reachable_bytes for pointer in pointers)
        given = (*head, *extents, *call.symbolic_values, *call.args)
        try:
            with compiler_hooks.compile_with_checks(asked):
                note.compiled_kernel = self._original_run(
                    twin, *given, grid=call.grid, warmup=False, **call.options
                )
        except compiler_hooks.UnforeseenSpecialization:
            kernel.device_caches[_CACHE_KEY][_FIXED_CONSTANTS_KEY] = True
            tally.launches -= 1
            return self._run_checked(
                kernel, args, grid, options, run_unchecked, whole_storages, inductor_source
            )
        except Exception as error:
            if self._strict or "CUDA error" in str(error):
                raise
            # With checks it does not compile, or does not fit; if it is wrong itself, this says so.
            result = run_unchecked()
            words = str(error).splitlines()[0] if str(error) else ""
            self._record_refusal(kernel, tally, f"{type(error).__name__}: {words}", fenced)
            return result
        found = getattr(note.compiled_kernel.metadata, compiler_hooks.METADATA_KEY, None)
        if found is None:
            self._record_refusal(kernel, tally, "what compiled it passed the check by")
        else:
            self._record_refusal(kernel, tally, found.get("refused", ""), fenced)
            tally.unchecked_accesses = found.get("unchecked", {})
        return note.compiled_kernel

    def _prepare_call(
        self, kernel: Any, args: tuple[Any, ...], grid: Any, options: dict[str, Any]
    ) -> KernelCall:
        call = KernelCall(args, grid, options)
        made = kernel.device_caches.setdefault(_CACHE_KEY, {})
        if self._symbolic_constants and not made.get(_FIXED_CONSTANTS_KEY):
            try:
                return specialize_call(kernel, call)
            except Exception:  # what the front end refuses is Triton's to tell, as it is called
                made[_FIXED_CONSTANTS_KEY] = True
        return call

    def _begin_race_check(self, device: int, options: dict[str, Any]) -> tuple[int, int] | None:
        """Not of a launch that may begin before the one in front of it has ended."""
        if options.get("launch_pdl"):
            return None
        return PROCESS_REPORTS.begin_launch(device, self._original_run)

    @staticmethod
    def _record_refusal(
        kernel: Any, tally: KernelTally, reason: str, with_access_rules: bool = False
    ) -> None:
        tally.refusal = reason
        if reason:
            place = _RULE_REFUSAL_KEY if with_access_rules else _REFUSAL_KEY
            kernel.device_caches.setdefault(_CACHE_KEY, {})[place] = reason

    def _get_checked_kernel(
        self, kernel: Any, request: InstrumentationRequest, device: int, tally: KernelTally
    ) -> tuple[Any, int] | None:
        """The kernel with checks, and the address of its table."""
        made = kernel.device_caches.setdefault(_CACHE_KEY, {})
        key = (
            request.pointer_count,
            request.checks,
            request.overlapping_pointers,
            request.symbolic_parameters,
            device,
        )
        if key not in made:
            table = PROCESS_REPORTS.allocate_table(device)
            if table is None:
                why = "there was no room for its reports"
                if torch.cuda.is_current_stream_capturing():
                    tally.refusal = why  # for as long as that
                else:
                    self._record_refusal(kernel, tally, why)
                return None
            try:
                made[key] = (compiler_hooks.build_checked_kernel(kernel, request), table)
            except (OSError, ValueError, TypeError) as error:
                self._record_refusal(kernel, tally, f"its source cannot be read again ({error})")
                return None
        return made[key]  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A launch as it is made: with what it hands over in the place of constants."""

    args: tuple[Any, ...]
    grid: Any
    options: dict[str, Any]
    specialization: Specialization | None = None
    symbolic_values: tuple[int, ...] = ()


def specialize_call(kernel: Any, call: KernelCall) -> KernelCall:
    """The launch as the first one that it shares its IR with, and its own numbers for that."""
    binder = frontend.get_binder(kernel)
    bound = binder.bind(call.args, call.options)
    if bound.key not in binder.programs:
        shared = loosening.specialize_call(kernel, binder, bound)
        numbers = tuple(
            _to_signed(one.value, bits_of(one.type)) for one in shared.symbolic_arguments
        )
        binder.programs[bound.key] = shared.specialization, numbers
    way, numbers = binder.programs[bound.key]
    if way is None:
        return call
    return KernelCall(
        tuple(
            way.traced_values.get(place, value) for place, value in enumerate(bound.values.values())
        ),
        call.grid(dict(bound.values)) if callable(call.grid) else call.grid,
        {name: value for name, value in call.options.items() if name not in bound.values},
        way,
        numbers,
    )


def _to_signed(number: int, bits: int) -> int:
    return number - (1 << bits) if number >> (bits - 1) == 1 else number
