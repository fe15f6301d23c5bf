"""Where a kernel tells: at the access, or once the loop around it is over.

A branch in each turn of a loop keeps Triton and the assembler from overlapping turns. So a loop
hands on the first that each of its accesses has to tell, where that fits into a register or two,
and tells it behind itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from harness.kernels.gpu.graph_builder import NE, GraphBuilder
from harness.kernels.gpu.report_assembly import build_assembly, build_constraints
from harness.kernels.ir.graph import (
    IRBlock,
    IROperation,
    IRRegion,
    IRValue,
    SourceLocation,
    ValueType,
)

_MAX_PACKED_LANES = 16  # lanes that one report looks at


@dataclass(frozen=True, slots=True)
class SiteReport:
    """What is to be put down of a site, if the word is not 0."""

    site: int
    source: SourceLocation
    word: IRValue
    address: IRValue
    operands: tuple[IRValue, ...] = ()  # of what wrapped: two, where something can have

    @property
    def values(self) -> tuple[IRValue, ...]:
        return self.word, self.address, *self.operands

    def with_values(self, values: Sequence[IRValue]) -> SiteReport:
        return SiteReport(self.site, self.source, values[0], values[1], tuple(values[2:]))


class ReportEmitter:
    def __init__(
        self, code: GraphBuilder, report: IRValue, launch: IRValue, threads_per_program: int
    ) -> None:
        self._code, self._threads_per_program = code, threads_per_program
        self._report, self._launch = report, launch
        self._pending: list[SiteReport] | None = None  # of the loop whose body this is

    @contextmanager
    def collect_reports(self, in_loop: bool) -> Iterator[list[SiteReport]]:
        """What is told meanwhile: of a loop it is to be handed on, and is put down at once else."""
        later: list[SiteReport] = []
        outer, self._pending = self._pending, later if in_loop else None
        yield later
        self._pending = outer

    def report(self, site_report: SiteReport) -> None:
        if self._pending is not None and site_report.word.type.lanes <= self._threads_per_program:
            self._pending.append(site_report)
        else:
            self.emit_report(site_report)

    def emit_report(self, site_report: SiteReport) -> None:
        code, shape = self._code, site_report.address.type.shape
        widest = _MAX_PACKED_LANES // 2 if site_report.operands else _MAX_PACKED_LANES
        pack = (
            max(1, min(widest, site_report.address.type.lanes // self._threads_per_program))
            if shape
            else 1
        )
        both = (code.splat(self._report, shape), code.splat(self._launch, shape))
        wide = 1 + len(site_report.operands)
        code.source = site_report.source
        code.emit(
            "tt.elementwise_inline_asm",
            (*site_report.values, *both),
            ValueType("i32", shape),
            asm_string=f'"{build_assembly(site_report.site, pack, wide)}"',
            constraints=f'"{build_constraints(pack, wide)}"',
            packed_element=f"{pack} : i32",
            pure="false",
        )

    def carry_through_loop(
        self, operation: IROperation, block: IRBlock, pending: Sequence[SiteReport]
    ) -> tuple[IROperation, IRBlock]:
        """The loop, and its body, with what it hands on of these: the first word that is not 0."""
        code = self._code
        now = [value for one in pending for value in one.values]
        before = tuple(code.constant(0, value.type) for value in now)
        inside, after = ([code.new_value(value.type) for value in now] for _ in range(2))
        *operations, last = block.operations
        kept: list[IRValue] = []
        with code.insert_into(operations):
            for one in pending:
                at = len(kept)
                known = code.compare(NE, inside[at], code.constant(0, inside[at].type))
                ways = range(at, at + len(one.values))
                kept += [code.select(known, inside[way], now[way]) for way in ways]
        return (
            replace(
                operation,
                operands=(*operation.operands, *before),
                results=(*operation.results, *after),
            ),
            replace(
                block,
                arguments=(*block.arguments, *inside),
                operations=(*operations, replace(last, operands=(*last.operands, *kept))),
            ),
        )

    def emit_carried(
        self, pending: Sequence[SiteReport], carried_values: Sequence[IRValue]
    ) -> None:
        """Behind the loop."""
        for told in pending:
            many = len(told.values)
            self.emit_report(told.with_values(carried_values[:many]))
            carried_values = carried_values[many:]


def reduce_to_nonzero_lane(code: GraphBuilder, values: Sequence[IRValue]) -> list[IRValue]:
    """Of a lane whose first value is not 0, if there is one: what is told of many lanes at once is
    less to compile than what is told of each."""
    given = list(values)
    while shape := given[0].type.shape:
        one, other = (
            [code.new_value(ValueType(value.type.element)) for value in given] for _ in range(2)
        )
        with code.insert_into([]) as body:
            known = code.compare(NE, one[0], code.constant(0, one[0].type))
            ended = tuple(code.select(known, *both) for both in zip(one, other, strict=True))
            body.append(IROperation("tt.reduce.return", ended, (), {}, code.source))
        region = IRRegion((IRBlock("bb0", (*one, *other), tuple(body)),))
        made = [code.new_value(ValueType(value.type.element, shape[:-1])) for value in given]
        axis = {"axis": f"{len(shape) - 1} : i32"}
        code.operations.append(
            IROperation("tt.reduce", tuple(given), tuple(made), axis, code.source, (region,))
        )
        given = made
    return given
