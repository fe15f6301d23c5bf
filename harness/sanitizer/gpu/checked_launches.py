"""Launches of checked kernels: the number of bytes behind each pointer goes along as an argument.

Example: `copy[(3,)](x, y, 24, BLOCK=8)` with int32 tensors of 24 elements launches the checked
kernel as `(table, 7, 96, 96, x, y, 24)`: its report table, the launch's number, two extents, its
own arguments. Invariant: nothing here waits for the device, so launches can be captured in a graph;
a captured launch keeps its extents and its number, and each replay is checked as its first run.
Reports come back through the host's memory (`report_buffer`). A specialization that cannot be
checked runs as it is, and the summary gives the reason; the kernel's other ones are checked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from triton.runtime.jit import JITFunction

from harness.sanitizer.gpu import (
    DEFAULT_CHECKS,
    LINE_CHECK,
    RULES_CHECK,
    SUBGRID_CHECK,
    InstrumentationRequest,
    compiler_hooks,
    inductor,
)
from harness.sanitizer.gpu.kernel_summaries import (
    NO_SHADOW_MEMORY,
    KernelSummaries,
    KernelSummary,
    find_place,
)
from harness.sanitizer.gpu.pointer_arguments import (
    PointerArgument,
    find_overlapping_pointers,
    flatten_arguments,
)
from harness.sanitizer.gpu.process_reports import PROCESS_REPORTS, LaunchRecord
from harness.sanitizer.gpu.program_grid import Subgrid
from harness.sanitizer.gpu.storage_registry import STORAGE_REGISTRY, track_data_ptr
from harness.sanitizer.ir.graph import get_bit_count, wrap_integer
from harness.sanitizer.triton import frontend, jit_kernels, recorded_reach, specialization
from harness.sanitizer.triton.specialization import Specialization

# Beside the compiled kernels in the kernel's caches: who changes the source drops all of them.
_CACHE_KEY = "checked by unfix"
_REFUSALS_KEY = "refusals"
ALL_CALLS = "all calls"
_FIXED_CONSTANTS_KEY = "constants stay constants"
_NO_ROOM = "there was no room for its reports"
_MAY_OVERLAP = "races: it may begin before the launch in front of it has ended (launch_pdl)"


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
        """`strict`: an error of a checked kernel is raised, not taken for a refusal.

        `whole_storages`: a pointer may reach to the end of its tensor's storage.

        `symbolic_constants`: constants that a kernel only computes with become parameters. That
        saves compilations, and costs each launch some tens of microseconds.
        """
        self.checks, self._strict = tuple(checks), strict
        self._describe_server_phase = describe_server_phase
        self._whole_storages, self._symbolic_constants = whole_storages, symbolic_constants
        self.summaries = KernelSummaries()
        # Builds a launch's table of access rules, and returns its address, or None without rules.
        self.build_rule_table: Callable[[Sequence[PointerArgument]], int | None] | None = None
        self.checked_line = 0  # for LINE_CHECK
        self.subgrid = Subgrid((0, 0, 0), (0, 0, 0))  # for SUBGRID_CHECK
        self._original_run: Any = None
        self._original_inductor_run: Any = None
        self._original_data_ptr: Any = None

    def start(self) -> None:
        compiler_hooks.install_compiler_hooks()
        self._original_data_ptr = track_data_ptr()
        launcher = self

        def run_checked(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
            with STORAGE_REGISTRY.ignore_address_requests():
                return launcher.run(kernel, args, grid, warmup, options)

        self._original_run = jit_kernels.replace_run(JITFunction, run_checked)

    def start_inductor(self) -> None:
        """Check Inductor's kernels as well, if Inductor is loaded."""
        launcher = self

        def run_checked(tuner: Any, *args: Any, **options: Any) -> Any:
            with STORAGE_REGISTRY.ignore_address_requests():
                return launcher._run_inductor(tuner, args, options)

        if self._original_inductor_run is None:
            self._original_inductor_run = inductor.replace_inductor_run(run_checked)

    def stop(self) -> None:
        jit_kernels.replace_run(JITFunction, self._original_run)
        if self._original_inductor_run is not None:
            inductor.replace_inductor_run(self._original_inductor_run)
        if self._original_data_ptr is not None:
            torch.Tensor.data_ptr = self._original_data_ptr

    def number_launch(self, stream: int) -> tuple[int, int] | None:
        """Number the next launch of a stream, which is no Triton kernel's, for races.

        Return the addresses of the number and of the tables; None in a capture without tables.
        """
        device = torch.cuda.current_device()
        if stream == torch.cuda.current_stream(device).cuda_stream:
            return PROCESS_REPORTS.begin_launch(device, self._original_run)
        with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=device)):
            return PROCESS_REPORTS.begin_launch(device, self._original_run)

    def find_refusal(
        self,
        kernel: Any,
        args: tuple[Any, ...],
        options: dict[str, Any],
        with_access_rules: bool = False,
    ) -> str:
        """Return why a launch runs unchecked, as far as is known; "" if it is checked."""
        if type(kernel) is not JITFunction:
            return f"it is a {type(kernel).__name__}"
        refusals = _get_refusals(kernel)
        if not refusals:
            return ""
        names = (ALL_CALLS, key := _make_refusal_key(kernel, args, options))
        names += ((key, RULES_CHECK),) if with_access_rules else ()
        return next((refusals[name] for name in names if name in refusals), "")

    def find_any_refusal(self, kernel: Any) -> str:
        """Return why one of the kernel's launches so far ran unchecked; "" if none did."""
        if type(kernel) is not JITFunction:
            return f"it is a {type(kernel).__name__}"
        return next(iter(_get_refusals(kernel).values()), "")

    def run(
        self, kernel: Any, args: tuple[Any, ...], grid: Any, warmup: bool, options: dict[str, Any]
    ) -> Any:
        def run_unchecked() -> Any:
            return self._original_run(kernel, *args, grid=grid, warmup=warmup, **options)

        if warmup:
            return run_unchecked()
        return self._run_checked(kernel, args, grid, options, run_unchecked, self._whole_storages)

    def _run_inductor(self, tuner: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        def run_unchecked() -> Any:
            return self._original_inductor_run(tuner, *args, **options)

        named = {name: value for name, value in options.items() if name != "stream"}
        if named.pop("benchmark_run", False):
            return run_unchecked()
        try:
            launch = inductor.to_triton_launch(tuner, args, named)
        except Exception as error:  # an unknown Inductor, or an error that its own run will raise
            is_known = isinstance(error, inductor.UnsupportedInductorLaunch)
            first_line = (str(error).splitlines() or [""])[0]
            self.summaries.count_launch(
                inductor.get_kernel_name(tuner), find_place(tuner.fn.fn)
            ).count_refusal(
                first_line if is_known else f"{type(error).__name__}: {first_line}",
                torch.cuda.is_current_stream_capturing(),
            )
            return run_unchecked()
        source = inductor.find_compiled_function()
        # Inductor cuts buffers into views whose strides only it knows: whole storages.
        return self._run_checked(
            launch.kernel, (), launch.grid, launch.options, run_unchecked, True, source
        )

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
        if recorded_reach.is_recording():
            binder = frontend.get_binder(kernel)
            binder.record(binder.bind(args, options))
            recorded_reach.record_reach(kernel, ())
        name = str(kernel.fn.__name__)
        summary = self.summaries.count_launch(name, find_place(kernel.fn))
        capturing = torch.cuda.is_current_stream_capturing()
        if refusal := self.find_refusal(kernel, args, options):
            summary.count_refusal(refusal, capturing)
            return run_unchecked()
        pointers, scalars = flatten_arguments(kernel, args, options, capturing or whole_storages)
        rules = self.build_rule_table(pointers) if self.build_rule_table is not None else None
        has_rules = rules is not None
        device = torch.cuda.current_device()
        races = self._begin_race_check(device, options, summary)
        checks = tuple(check for check in self.checks if check != "races" or races is not None)
        checks = (*checks, RULES_CHECK) if has_rules else checks
        call = self._prepare_call(kernel, args, grid, options)
        request = InstrumentationRequest(
            len(pointers),
            checks,
            () if races is None else find_overlapping_pointers(pointers),
            call.specialization,
        )
        checked = self._get_checked_kernel(kernel, request, device)
        if isinstance(checked, str):
            summary.count_refusal(checked, capturing)
            return run_unchecked()
        checked_kernel, table = checked
        PROCESS_REPORTS.upload_storage_table(device)
        record = LaunchRecord(
            name,
            pointers,
            scalars,
            capturing,
            self._describe_server_phase(),
            inductor_source=inductor_source,
        )
        values: list[Any] = [table, PROCESS_REPORTS.remember_launch(record)]
        values += () if rules is None else (rules,)
        values += races or ()
        values += (self.checked_line,) if LINE_CHECK in checks else ()
        values += self.subgrid.launch_values if SUBGRID_CHECK in checks else ()
        values += (pointer.reachable_bytes for pointer in pointers)
        values += (*call.symbolic_values, *call.args)
        try:
            began = time.perf_counter()
            with compiler_hooks.compile_with_checks(request) as compiled:
                record.compiled_kernel = self._original_run(
                    checked_kernel, *values, grid=call.grid, warmup=False, **call.options
                )
        except compiler_hooks.UnforeseenSpecialization:
            kernel.device_caches[_CACHE_KEY][_FIXED_CONSTANTS_KEY] = True
            summary.count_launches(-1)
            return self._run_checked(
                kernel, args, grid, options, run_unchecked, whole_storages, inductor_source
            )
        except Exception as error:
            if self._strict or "CUDA error" in str(error):
                raise
            # It does not compile or fit with checks. If the kernel itself is wrong, this raises.
            result = run_unchecked()
            first_line = str(error).splitlines()[0] if str(error) else ""
            reason = f"{type(error).__name__}: {first_line}"
            summary.count_refusal(reason, capturing)
            remember_refusal(kernel, args, options, reason, has_rules)
            return result
        if compiled.kernels:
            summary.count_compilations(compiled.kernels, time.perf_counter() - began)
        metadata = getattr(record.compiled_kernel.metadata, compiler_hooks.METADATA_KEY, None)
        if metadata is None:
            metadata = {"refused": "it was compiled past the checks"}
        if reason := metadata.get("refused", ""):
            summary.count_refusal(reason, capturing)
            remember_refusal(kernel, args, options, reason, has_rules)
        summary.merge_unchecked_accesses(metadata.get("unchecked", {}))
        return record.compiled_kernel

    def _prepare_call(
        self, kernel: Any, args: tuple[Any, ...], grid: Any, options: dict[str, Any]
    ) -> KernelCall:
        call = KernelCall(args, grid, options)
        cache = kernel.device_caches.setdefault(_CACHE_KEY, {})
        if self._symbolic_constants and not cache.get(_FIXED_CONSTANTS_KEY):
            try:
                return specialize_call(kernel, call)
            except Exception:  # Triton raises the same error when it is called
                cache[_FIXED_CONSTANTS_KEY] = True
        return call

    def _begin_race_check(
        self, device: int, options: dict[str, Any], summary: KernelSummary
    ) -> tuple[int, int] | None:
        """Begin a launch; None without race checks, or if launches may overlap."""
        if "races" not in self.checks:
            return None
        if options.get("launch_pdl"):
            summary.count_skipped_check(_MAY_OVERLAP)
            return None
        races = PROCESS_REPORTS.begin_launch(device, self._original_run)
        if races is None:
            summary.count_skipped_check(NO_SHADOW_MEMORY)
        return races

    def _get_checked_kernel(
        self, kernel: Any, request: InstrumentationRequest, device: int
    ) -> tuple[Any, int] | str:
        """Return the kernel with checks and the address of its table, or why there is none."""
        cache = kernel.device_caches.setdefault(_CACHE_KEY, {})
        key = (
            request.pointer_count,
            request.checks,
            request.overlapping_pointers,
            request.symbolic_parameters,
            device,
        )
        if key not in cache:
            name, place = str(kernel.fn.__name__), find_place(kernel.fn)
            table = PROCESS_REPORTS.allocate_table(device, name, place)
            if table is None:
                if (
                    not torch.cuda.is_current_stream_capturing()
                ):  # else a later launch may find room
                    _get_refusals(kernel)[ALL_CALLS] = _NO_ROOM
                return _NO_ROOM
            try:
                cache[key] = (compiler_hooks.build_checked_kernel(kernel, request), table)
            except (OSError, ValueError, TypeError) as error:
                reason = f"its source cannot be read again ({error})"
                _get_refusals(kernel)[ALL_CALLS] = reason
                return reason
        return cache[key]  # type: ignore[no-any-return]


def remember_refusal(
    kernel: Any,
    args: tuple[Any, ...],
    options: dict[str, Any],
    reason: str,
    with_access_rules: bool = False,
) -> None:
    """Run later launches of the same specialization unchecked, without another compilation."""
    key = _make_refusal_key(kernel, args, options)
    _get_refusals(kernel)[(key, RULES_CHECK) if with_access_rules else key] = reason


def _get_refusals(kernel: Any) -> dict[Any, str]:
    cache = kernel.device_caches.setdefault(_CACHE_KEY, {})
    refusals: dict[Any, str] = cache.setdefault(_REFUSALS_KEY, {})
    return refusals


def _make_refusal_key(kernel: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Make the key of a call's specialization: types, constants, and Triton's own options."""
    bound = frontend.get_binder(kernel).bind(args, options)
    own = sorted((name, repr(value)) for name, value in options.items() if name not in bound.values)
    return bound.key, *own


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A launch's arguments, with those that it passes in place of constants."""

    args: tuple[Any, ...]
    grid: Any
    options: dict[str, Any]
    specialization: Specialization | None = None
    symbolic_values: tuple[int, ...] = ()


def specialize_call(kernel: Any, call: KernelCall) -> KernelCall:
    """Return the call with the constants of the first call of its IR, and its own as values."""
    binder = frontend.get_binder(kernel)
    bound = binder.bind(call.args, call.options)
    if bound.key not in binder.programs:
        shared = specialization.specialize_call(kernel, binder, bound)
        values = tuple(
            wrap_integer(argument.value, get_bit_count(argument.type), signed=True)
            for argument in shared.symbolic_arguments
        )
        binder.programs[bound.key] = shared.specialization, values
    shared_specialization, values = binder.programs[bound.key]
    if shared_specialization is None:
        return call
    traced_values = shared_specialization.traced_values
    return KernelCall(
        tuple(
            traced_values.get(position, value)
            for position, value in enumerate(bound.values.values())
        ),
        call.grid(dict(bound.values)) if callable(call.grid) else call.grid,
        {name: value for name, value in call.options.items() if name not in bound.values},
        shared_specialization,
        values,
    )
