"""Reports written into a kernel: right behind a check, or behind the loop around it.

A branch in each iteration keeps Triton and the assembler from overlapping iterations. Invariant: a
check in a loop body adds no branch to it. The loop carries, for each of the body's reports, the
first word that is not 0, with the address and the operands of that lane; the report itself is
emitted behind the loop. Example: a load in `for i in range(5)` that leaves its tensor at i = 3 and
4 is reported once, with the address of i = 3. A report of more lanes than the program has threads
would need several registers a thread; it is emitted inside the loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from harness.sanitizer.gpu.graph_builder import GraphBuilder
from harness.sanitizer.gpu.report_assembly import build_assembly, build_constraints
from harness.sanitizer.ir.graph import (
    IRBlock,
    IROperation,
    IRRegion,
    IRValue,
    SourceLocation,
    ValueType,
)
from harness.sanitizer.ir.operation_sites import OperationSite

_MAX_PACKED_LANES = 16  # lanes of one thread that one piece of assembly handles


@dataclass(frozen=True, slots=True)
class SiteReport:
    """The values to record for a site, in each lane whose word is not 0."""

    site: int
    source: SourceLocation
    word: IRValue
    address: IRValue
    operands: tuple[IRValue, ...] = ()  # two more numbers, or none

    @property
    def values(self) -> tuple[IRValue, ...]:
        return self.word, self.address, *self.operands

    def with_values(self, values: Sequence[IRValue]) -> SiteReport:
        return SiteReport(self.site, self.source, values[0], values[1], tuple(values[2:]))


class ReportEmitter:
    def __init__(
        self, code: GraphBuilder, table: IRValue, launch: IRValue, threads_per_program: int
    ) -> None:
        """`table`: the kernel's table on the device; `launch`: the launch's number."""
        self.sites: list[OperationSite] = []  # a report holds an index into these
        self._code, self._threads_per_program = code, threads_per_program
        self._table, self._launch = table, launch
        self._pending: list[SiteReport] | None = None  # reports of the rewritten loop

    @contextmanager
    def collect_reports(self, in_loop: bool) -> Iterator[list[SiteReport]]:
        """Collect the reports of a loop's body; elsewhere they are emitted at once."""
        collected: list[SiteReport] = []
        outer, self._pending = self._pending, collected if in_loop else None
        yield collected
        self._pending = outer

    def report(
        self, site: OperationSite, word: IRValue, address: IRValue, operands: Sequence[IRValue] = ()
    ) -> None:
        self.sites.append(site)
        report = SiteReport(len(self.sites) - 1, site.source, word, address, tuple(operands))
        if self._pending is not None and word.type.lanes <= self._threads_per_program:
            self._pending.append(report)
        else:
            self.emit_report(report)

    def emit_report(self, report: SiteReport) -> None:
        code, kind = self._code, report.address.type
        widest = _MAX_PACKED_LANES // 2 if report.operands else _MAX_PACKED_LANES
        pack = max(1, min(widest, kind.lanes // self._threads_per_program)) if kind.shape else 1
        heads = (code.splat(self._table, kind.shape), code.splat(self._launch, kind.shape))
        int64_count = 1 + len(report.operands)
        code.source = report.source
        code.emit(
            "tt.elementwise_inline_asm",
            (*report.values, *heads),
            ValueType("i32", kind.shape),
            asm_string=f'"{build_assembly(report.site, pack, int64_count)}"',
            constraints=f'"{build_constraints(pack, int64_count)}"',
            packed_element=f"{pack} : i32",
            pure="false",
        )

    def carry_through_loop(
        self, operation: IROperation, block: IRBlock, pending: Sequence[SiteReport]
    ) -> tuple[IROperation, IRBlock]:
        """Return a loop and body that carry the first nonzero word of each pending report."""
        code = self._code
        current = [value for report in pending for value in report.values]
        initial = tuple(code.constant(0, value.type) for value in current)
        carried, results = ([code.new_value(value.type) for value in current] for _ in range(2))
        *operations, terminator = block.operations
        yielded: list[IRValue] = []
        with code.insert_into(operations):
            for report in pending:
                first = len(yielded)
                is_set = code.is_nonzero(carried[first])
                positions = range(first, first + len(report.values))
                yielded += [code.select(is_set, carried[at], current[at]) for at in positions]
        terminator = replace(terminator, operands=(*terminator.operands, *yielded))
        return (
            replace(
                operation,
                operands=(*operation.operands, *initial),
                results=(*operation.results, *results),
            ),
            replace(
                block,
                arguments=(*block.arguments, *carried),
                operations=(*operations, terminator),
            ),
        )

    def emit_carried(self, pending: Sequence[SiteReport], loop_results: Sequence[IRValue]) -> None:
        """Emit the reports that a loop carried, behind it."""
        for report in pending:
            count = len(report.values)
            self.emit_report(report.with_values(loop_results[:count]))
            loop_results = loop_results[count:]


def reduce_to_nonzero_lane(code: GraphBuilder, values: Sequence[IRValue]) -> list[IRValue]:
    """Return the values of one lane whose first value is not 0, if there is such a lane.

    One report of a whole block compiles faster than a report of each lane.
    """
    reduced = list(values)
    while shape := reduced[0].type.shape:
        left, right = (
            [code.new_value(ValueType(value.type.element)) for value in reduced] for _ in range(2)
        )
        with code.insert_into([]) as body:
            is_set = code.is_nonzero(left[0])
            chosen = [code.select(is_set, *pair) for pair in zip(left, right, strict=True)]
            code.end_block("tt.reduce.return", chosen)
        region = IRRegion((IRBlock("bb0", (*left, *right), tuple(body)),))
        results = [code.new_value(ValueType(value.type.element, shape[:-1])) for value in reduced]
        axis = {"axis": f"{len(shape) - 1} : i32"}
        code.operations.append(
            IROperation("tt.reduce", tuple(reduced), tuple(results), axis, code.source, (region,))
        )
        reduced = results
    return reduced
