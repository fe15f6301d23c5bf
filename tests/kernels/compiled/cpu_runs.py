"""Kernels with checks in, run on this machine by the CPU's executor.

What a GPU's assembly puts down is stored into a tensor here, and told in the words of `on_gpu`. The
executor finds nothing to refuse: what would be outside was taken out.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.checking import Violation
from harness.kernels.check import cpu_launcher as here
from harness.kernels.check import gpu_reports, region_tables
from harness.kernels.check.launch_log import LaunchLog
from harness.kernels.check.tracked_memory import MemoryTracker
from harness.kernels.cpu import program_cache
from harness.kernels.gpu import (
    DEFAULT_CHECKS,
    RULES_CHECK,
    InstrumentationRequest,
    checked_launches,
    compiler_hooks,
    instrumentation,
    report_buffer,
)
from harness.kernels.gpu.graph_builder import NE
from harness.kernels.gpu.pointer_arguments import find_overlapping_pointers, flatten_arguments
from harness.kernels.gpu.program_grid import Subgrid
from harness.kernels.gpu.report_assembly import MAX_SITES, KernelTable, ReportBit
from harness.kernels.gpu.report_emission import ReportEmitter
from harness.kernels.gpu.shadow_memory import RaceShadowMemory
from harness.kernels.gpu.storage_registry import STORAGE_REGISTRY
from harness.kernels.ir import flow
from harness.kernels.ir.graph import ValueType
from harness.kernels.triton import graph_loader


def compile_uncached(folder: str, key: str, make: Any) -> Any:
    return make()


_ROW = 40  # bytes: of a kernel's table in front of what is put down, and of each of that


def put_down(teller: Any, told: Any) -> None:
    code = teller._code
    shape = told.word.type.shape
    word = code.extend(told.word, "i64", signed=False)
    none = code.constant(0, word.type)
    number = code.binary("andi", word, code.constant(~ReportBit.OUT_OF_BOUNDS, word.type))
    wraps, outside = code.compare(NE, number, none), code.compare(NE, word, none)
    outside = code.select(wraps, code.constant(0, outside.type), outside)
    program = code.emit("tt.get_program_id", (), ValueType("i32"), axis="0 : i32")
    program = code.splat(code.extend(program, "i64", signed=True), shape)
    for on, row in ((wraps, 2 * told.site), (outside, 2 * told.site + 1)):
        values = word, *told.values[1:]
        for place, value in (*enumerate(values), (4, program)):
            offset = code.constant(_ROW * (1 + row) + 8 * place, ValueType("i64"))
            at = code.binary("addi", teller._table, offset)
            pointer = code.splat(code.emit("tt.int_to_ptr", (at,), ValueType("ptr<i64>")), shape)
            code.emit(
                "tt.atomic_rmw",
                (pointer, value, on),
                value.type,
                atomic_rmw_op="10 : i32",  # exchange
                sem="4 : i32",
                scope="1 : i32",
            )


@pytest.fixture(autouse=True, scope="module")
def run_on_cpu() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReportEmitter, "emit_report", put_down)
        patch.setattr(program_cache, "get_or_compute", compile_uncached)
        patch.setattr(
            region_tables.ShadowMemory, "allocate_shadow", lambda *given: 0
        )  # the executor's own
        yield


@functools.cache
def shadows() -> RaceShadowMemory:
    return RaceShadowMemory("cpu")


def launched(kernel: Any, *args: Any, grid: tuple[int, ...], warmup: bool, **named: Any) -> None:
    with here.CpuLauncher(
        MemoryTracker(), LaunchLog(), exact=False, trust_loaded_pointers=True
    ) as session:
        session.launch(kernel, args, grid, named)


def run_checked(
    kernel: Any,
    args: Any,
    named: Any,
    grid: tuple[int, ...] = (1,),
    lists: int | None = None,
    checks: tuple[str, ...] = DEFAULT_CHECKS,
    line: int | None = None,
    part: Subgrid | None = None,
) -> tuple[instrumentation.InstrumentedGraph, list[list[int]]]:
    """What a launch puts down: of each site its last wrap, and its last access outside."""
    pointers, _ = flatten_arguments(kernel, args, named)
    checks = checks if lists is None else (*checks, RULES_CHECK)
    asked = InstrumentationRequest(len(pointers), checks, find_overlapping_pointers(pointers))
    twin = _twin(kernel, asked)
    memory = torch.from_numpy(STORAGE_REGISTRY.to_table())
    records = torch.zeros((1 + 2 * MAX_SITES, _ROW // 8), dtype=torch.int64)
    records[0, KernelTable.STORAGE_TABLE // 8] = memory.data_ptr()
    races = shadows().begin_launch(launched, captured=False) if "races" in checks else ()
    one = () if line is None else (line,)
    place = () if part is None else part.launch_values
    head = (records.data_ptr(), 1, *(() if lists is None else (lists,)), *races, *one, *place)
    whole = (*head, *(pointer.reachable_bytes for pointer in pointers), *args)
    graph = graph_loader.read_graph(twin, whole, named)
    checked = instrumentation.instrument_graph(graph, asked, 128)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(here.graph_loader, "load_graph", lambda *bound: checked.graph)
        patch.setattr(here.specialization, "specialize_call", lambda kernel, binder, bound: bound)
        patch.setattr(
            flow, "analyze_addresses", lambda graph: flow.AddressIntegers({}, frozenset())
        )
        with here.CpuLauncher(
            MemoryTracker(), LaunchLog(), exact=False, trust_loaded_pointers=True
        ) as session:
            session.launch(twin, whole, grid, named)
    return checked, records[1:].tolist()


def find_violations(
    kernel: Any,
    *args: Any,
    grid: tuple[int, ...] = (1,),
    checks: tuple[str, ...] = DEFAULT_CHECKS,
    line: int | None = None,
    **named: Any,
) -> list[Violation]:
    """What a launch puts down, as it is told."""
    put_down = run_checked(kernel, args, named, grid, checks=checks, line=line)
    return to_violations(*put_down, MemoryTracker(), kernel, args, named)


def to_violations(
    checked: instrumentation.InstrumentedGraph,
    records: list[list[int]],
    memory: MemoryTracker,
    kernel: Any,
    args: Any,
    named: Any,
) -> list[Violation]:
    pointers, scalars = flatten_arguments(kernel, args, named)
    launched = checked_launches.LaunchRecord(kernel.fn.__name__, pointers, scalars, False, "")
    launched.compiled_kernel = SimpleNamespace(metadata=SimpleNamespace())
    setattr(
        launched.compiled_kernel.metadata,
        compiler_hooks.METADATA_KEY,
        compiler_hooks.to_metadata(checked),
    )
    found = [
        gpu_reports.violation_from_record(
            report_buffer.DeviceReport(1, address, word, row // 2, (program, 0, 0), (left, right)),
            launched,
            memory,
        )
        for row, (word, address, left, right, program) in enumerate(records)
        if word
    ]
    return [one for one in found if one is not None]


_twins: dict[Any, Any] = {}


def _twin(kernel: Any, asked: InstrumentationRequest) -> Any:
    if (kernel, asked) not in _twins:
        _twins[kernel, asked] = compiler_hooks.build_checked_kernel(kernel, asked)
    return _twins[kernel, asked]
