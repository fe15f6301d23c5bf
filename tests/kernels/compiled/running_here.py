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

from harness import kernels
from harness.checking import Violation, on_gpu, regions
from harness.checking import launching as here
from harness.checking.launches import Launches
from harness.checking.memory import Memory
from harness.compiled import CHECKS, Asked, arena, launching, rewriting, triton_side
from harness.compiled.accesses import OUTSIDE
from harness.compiled.building import NE
from harness.compiled.known import KNOWN
from harness.compiled.part import Part
from harness.compiled.pointers import beside, flattened
from harness.compiled.reporting import SITES, Block
from harness.compiled.shadows import Shadows
from harness.compiled.telling import Teller
from harness.kernels import flow
from harness.kernels.graph import Kind
from harness.native import programs


def programs_made(folder: str, key: str, make: Any) -> Any:
    return make()


_ROW = 40  # bytes: of a kernel's table in front of what is put down, and of each of that


def put_down(teller: Any, told: Any) -> None:
    code = teller._code
    shape = told.word.kind.shape
    word = code.extended(told.word, "i64", signed=False)
    none = code.constant(0, word.kind)
    number = code.binary("andi", word, code.constant(~OUTSIDE, word.kind))
    wraps, outside = code.compare(NE, number, none), code.compare(NE, word, none)
    outside = code.chosen(wraps, code.constant(0, outside.kind), outside)
    program = code.emit("tt.get_program_id", (), Kind("i32"), axis="0 : i32")
    program = code.splat(code.extended(program, "i64", signed=True), shape)
    for on, row in ((wraps, 2 * told.site), (outside, 2 * told.site + 1)):
        values = word, *told.values[1:]
        for place, value in (*enumerate(values), (4, program)):
            offset = code.constant(_ROW * (1 + row) + 8 * place, Kind("i64"))
            at = code.binary("addi", teller._report, offset)
            pointer = code.splat(code.emit("tt.int_to_ptr", (at,), Kind("ptr<i64>")), shape)
            code.emit(
                "tt.atomic_rmw",
                (pointer, value, on),
                value.kind,
                atomic_rmw_op="10 : i32",  # exchange
                sem="4 : i32",
                scope="1 : i32",
            )


@pytest.fixture(autouse=True, scope="module")
def without_a_gpu() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Teller, "put_down", put_down)
        patch.setattr(programs, "kept", programs_made)
        patch.setattr(regions.Shadow, "of", lambda *given: 0)  # the executor's own
        yield


@functools.cache
def shadows() -> Shadows:
    return Shadows("cpu")


def launched(kernel: Any, *args: Any, grid: tuple[int, ...], warmup: bool, **named: Any) -> None:
    with here.Session(Memory(), Launches(), exact=False, trusting=True) as session:
        session.launch(kernel, args, grid, named)


def put_down_by(
    kernel: Any,
    args: Any,
    named: Any,
    grid: tuple[int, ...] = (1,),
    lists: int | None = None,
    checks: tuple[str, ...] = CHECKS,
    line: int | None = None,
    part: Part | None = None,
) -> tuple[rewriting.Rewritten, list[list[int]]]:
    """What a launch puts down: of each site its last wrap, and its last access outside."""
    pointers, _ = flattened(kernel, args, named)
    checks = checks if lists is None else (*checks, "fences")
    asked = Asked(len(pointers), checks, beside(pointers))
    twin = _twin(kernel, asked)
    memory = torch.from_numpy(KNOWN.table())
    records = torch.zeros((1 + 2 * SITES, _ROW // 8), dtype=torch.int64)
    records[0, Block.MEMORY // 8] = memory.data_ptr()
    races = shadows().launch_starts(launched, captured=False) if "races" in checks else ()
    one = () if line is None else (line,)
    place = () if part is None else part.numbers
    head = (records.data_ptr(), 1, *(() if lists is None else (lists,)), *races, *one, *place)
    whole = (*head, *(pointer.reach for pointer in pointers), *args)
    graph = kernels.read(twin, whole, named)
    checked = rewriting.rewritten(graph, asked, 128)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(here.kernels, "graph_of", lambda *bound: checked.graph)
        patch.setattr(here.loosening, "loosened", lambda kernel, binder, bound: bound)
        patch.setattr(flow, "addressing", lambda graph: flow.Addressing({}, frozenset()))
        with here.Session(Memory(), Launches(), exact=False, trusting=True) as session:
            session.launch(twin, whole, grid, named)
    return checked, records[1:].tolist()


def violations(
    kernel: Any,
    *args: Any,
    grid: tuple[int, ...] = (1,),
    checks: tuple[str, ...] = CHECKS,
    line: int | None = None,
    **named: Any,
) -> list[Violation]:
    """What a launch puts down, as it is told."""
    put_down = put_down_by(kernel, args, named, grid, checks=checks, line=line)
    return told_of(*put_down, Memory(), kernel, args, named)


def told_of(
    checked: rewriting.Rewritten,
    records: list[list[int]],
    memory: Memory,
    kernel: Any,
    args: Any,
    named: Any,
) -> list[Violation]:
    pointers, scalars = flattened(kernel, args, named)
    launched = launching.Launched(kernel.fn.__name__, pointers, scalars, False, "")
    launched.compiled = SimpleNamespace(metadata=SimpleNamespace())
    setattr(launched.compiled.metadata, triton_side.KEY, triton_side.told_of(checked))
    found = [
        on_gpu.violation(
            arena.Told(1, address, word, row // 2, (program, 0, 0), (left, right)), launched, memory
        )
        for row, (word, address, left, right, program) in enumerate(records)
        if word
    ]
    return [one for one in found if one is not None]


_twins: dict[Any, Any] = {}


def _twin(kernel: Any, asked: Asked) -> Any:
    if (kernel, asked) not in _twins:
        _twins[kernel, asked] = triton_side.twin(kernel, asked)
    return _twins[kernel, asked]
