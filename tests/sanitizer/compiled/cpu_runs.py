"""Kernels with the GPU's checks written in, run on this machine by the CPU's executor.

In place of the GPU's assembly, a report is stored into a tensor, and `gpu_facts` turns it into a
violation. The executor's own checks find nothing: out-of-bounds lanes were masked off.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.checking import Violation
from harness.sanitizer.check import cpu_launcher, gpu_facts, region_tables
from harness.sanitizer.check.launch_log import LaunchLog
from harness.sanitizer.check.options import DEFAULT_OPTIONS
from harness.sanitizer.check.tracked_memory import MemoryTracker
from harness.sanitizer.cpu import program_cache
from harness.sanitizer.gpu import (
    DEFAULT_CHECKS,
    RULES_CHECK,
    InstrumentationRequest,
    compiler_hooks,
    instrumentation,
    process_reports,
    report_buffer,
)
from harness.sanitizer.gpu.graph_builder import NE
from harness.sanitizer.gpu.pointer_arguments import find_overlapping_pointers, flatten_arguments
from harness.sanitizer.gpu.program_grid import Subgrid
from harness.sanitizer.gpu.report_assembly import MAX_SITES, KernelTable
from harness.sanitizer.gpu.report_emission import ReportEmitter
from harness.sanitizer.gpu.shadow_memory import RaceShadowMemory
from harness.sanitizer.gpu.storage_registry import STORAGE_REGISTRY
from harness.sanitizer.ir import flow
from harness.sanitizer.ir.graph import ValueType
from harness.sanitizer.llvm import stored_code
from harness.sanitizer.triton import graph_loader, specialization
from harness.sanitizer.violations.kinds import OVERFLOW_MASK

_ROW_BYTES = 40  # of a stored report, and of the kernel's table in front of them


def int32_zeros(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int32)


def float16_zeros(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.float16)


def store_report(emitter: Any, report: Any) -> None:
    """Replaces `ReportEmitter.emit_report`: one row for overflow, and one for all else."""
    code = emitter._code
    shape = report.word.type.shape
    word = code.extend(report.word, "i64", signed=False)
    zero = code.constant(0, word.type)
    number = code.binary("andi", word, code.constant(OVERFLOW_MASK, word.type))
    overflows, others = code.compare(NE, number, zero), code.compare(NE, word, zero)
    others = code.select(overflows, code.constant(0, others.type), others)
    program = code.emit("tt.get_program_id", (), ValueType("i32"), axis="0 : i32")
    program = code.splat(code.extend(program, "i64", signed=True), shape)
    for mask, row in ((overflows, 2 * report.site), (others, 2 * report.site + 1)):
        values = word, *report.values[1:]
        for column, value in (*enumerate(values), (4, program)):
            offset = code.constant(_ROW_BYTES * (1 + row) + 8 * column, ValueType("i64"))
            address = code.binary("addi", emitter._table, offset)
            pointer = code.emit("tt.int_to_ptr", (address,), ValueType("ptr<i64>"))
            code.emit(
                "tt.atomic_rmw",
                (code.splat(pointer, shape), value, mask),
                value.type,
                atomic_rmw_op="10 : i32",  # exchange
                sem="4 : i32",
                scope="1 : i32",
            )


@pytest.fixture(autouse=True, scope="module")
def run_on_cpu() -> Iterator[None]:
    with replace_gpu_parts():
        yield


@contextlib.contextmanager
def replace_gpu_parts() -> Iterator[None]:
    program_cache.get_jit()  # from the disk, as no program may be
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReportEmitter, "emit_report", store_report)
        patch.setattr(stored_code, "get_or_compute", lambda folder, key, compute: compute())
        patch.setattr(region_tables.ShadowMemory, "allocate_shadow", lambda *args: 0)
        yield


@functools.cache
def get_shadow_memory() -> RaceShadowMemory:
    return RaceShadowMemory("cpu")


def open_launcher() -> cpu_launcher.CpuLauncher:
    return cpu_launcher.CpuLauncher(
        MemoryTracker(), LaunchLog(), DEFAULT_OPTIONS, trust_loaded_pointers=True
    )


def launch_on_cpu(
    kernel: Any, *args: Any, grid: tuple[int, ...], warmup: bool, **options: Any
) -> None:
    with open_launcher() as launcher:
        launcher.launch(kernel, args, grid, options)


def run_checked(
    kernel: Any,
    args: Any,
    options: Any,
    grid: tuple[int, ...] = (1,),
    rules: int | None = None,
    checks: tuple[str, ...] = DEFAULT_CHECKS,
    line: int | None = None,
    subgrid: Subgrid | None = None,
) -> tuple[instrumentation.InstrumentedGraph, list[list[int]]]:
    """Run a launch; return each site's last overflow report and last other report."""
    pointers, _ = flatten_arguments(kernel, args, options)
    checks = checks if rules is None else (*checks, RULES_CHECK)
    request = InstrumentationRequest(len(pointers), checks, find_overlapping_pointers(pointers))
    checked_kernel = _build_checked_kernel(kernel, request)
    storage_table = torch.from_numpy(STORAGE_REGISTRY.to_table())
    reports = torch.zeros((1 + 2 * MAX_SITES, _ROW_BYTES // 8), dtype=torch.int64)
    reports[0, KernelTable.STORAGE_TABLE // 8] = storage_table.data_ptr()
    values: list[Any] = [reports.data_ptr(), 1]
    values += () if rules is None else (rules,)
    if "races" in checks:
        values += get_shadow_memory().begin_launch(launch_on_cpu, captured=False)
    values += () if line is None else (line,)
    values += () if subgrid is None else subgrid.launch_values
    values += (*(pointer.reachable_bytes for pointer in pointers), *args)
    graph = graph_loader.read_graph(checked_kernel, tuple(values), options)
    instrumented = instrumentation.instrument_graph(graph, request, 128)
    no_integers = flow.AddressIntegers({}, frozenset())
    with pytest.MonkeyPatch.context() as patch, open_launcher() as launcher:
        patch.setattr(graph_loader, "load_graph", lambda *bound: instrumented.graph)
        patch.setattr(specialization, "specialize_call", lambda kernel, binder, bound: bound)
        patch.setattr(flow, "analyze_addresses", lambda graph: no_integers)
        launcher.launch(checked_kernel, tuple(values), grid, options)
    return instrumented, reports[1:].tolist()


def find_violations(
    kernel: Any,
    *args: Any,
    grid: tuple[int, ...] = (1,),
    checks: tuple[str, ...] = DEFAULT_CHECKS,
    line: int | None = None,
    **options: Any,
) -> list[Violation]:
    result = run_checked(kernel, args, options, grid, checks=checks, line=line)
    return to_violations(*result, MemoryTracker(), kernel, args, options)


def to_violations(
    instrumented: instrumentation.InstrumentedGraph,
    reports: list[list[int]],
    memory: MemoryTracker,
    kernel: Any,
    args: Any,
    options: Any,
) -> list[Violation]:
    pointers, scalars = flatten_arguments(kernel, args, options)
    record = process_reports.LaunchRecord(kernel.fn.__name__, pointers, scalars, False, "")
    metadata = SimpleNamespace()
    setattr(metadata, compiler_hooks.METADATA_KEY, compiler_hooks.to_metadata(instrumented))
    record.compiled_kernel = SimpleNamespace(metadata=metadata)
    violations = [
        gpu_facts.violation_from_record(
            report_buffer.DeviceReport(
                1, address, word, row // 2, 0, (program, 0, 0), (left, right)
            ),
            record,
            memory,
        )
        for row, (word, address, left, right, program) in enumerate(reports)
        if word
    ]
    return [violation for violation in violations if violation is not None]


_checked_kernels: dict[Any, Any] = {}


def _build_checked_kernel(kernel: Any, request: InstrumentationRequest) -> Any:
    if (kernel, request) not in _checked_kernels:
        _checked_kernels[kernel, request] = compiler_hooks.build_checked_kernel(kernel, request)
    return _checked_kernels[kernel, request]
