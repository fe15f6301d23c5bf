"""A kernel's graph with checks written into it.

The checks' parameters stand in front of the kernel's own: the report table, the launch's number, a
table of access rules and the addresses that race checks need where these are on, and for each
pointer how many bytes it may reach. As for the CPU, `flow` finds the accesses, the
argument that each pointer comes from and the integers that lead to it.

Invariant: apart from lanes that a check masks off, the new graph computes the same as the old one.
Example: `copy(source, target, count, BLOCK)` with the checks "bounds" and "overflow" becomes
`copy(report, launch, extent0, extent1, source, target, count)` with two sites, a read and a write.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from harness.sanitizer.gpu import (
    LINE_CHECK,
    RULES_CHECK,
    SUBGRID_CHECK,
    SUBGRID_PARAMETERS,
    InstrumentationRequest,
)
from harness.sanitizer.gpu.access_checks import AccessChecks
from harness.sanitizer.gpu.access_rows import AccessRows
from harness.sanitizer.gpu.access_rules import AccessRuleTable
from harness.sanitizer.gpu.axis_contiguity import AxisContiguity
from harness.sanitizer.gpu.control_flow import ControlFlowRewriter
from harness.sanitizer.gpu.graph_builder import GraphBuilder
from harness.sanitizer.gpu.overflow_tracking import OverflowTracker
from harness.sanitizer.gpu.pointer_bounds import PointerBoundsTracker
from harness.sanitizer.gpu.program_grid import ProgramGrid, rewrite_program_ids
from harness.sanitizer.gpu.race_entries import RaceTables
from harness.sanitizer.gpu.report_emission import ReportEmitter
from harness.sanitizer.ir import flow
from harness.sanitizer.ir.graph import IRBlock, IROperation, IRRegion, IRValue, KernelGraph
from harness.sanitizer.ir.intervals import ValueRanges
from harness.sanitizer.ir.operation_sites import OperationSite
from harness.sanitizer.ir.operations import (
    ACCESS_OPERATIONS,
    CONTROL_FLOW_OPERATIONS,
    OVERFLOW_SYMBOLS,
)
from harness.sanitizer.violations.kinds import ViolationKind, to_word_bit
from harness.sanitizer.violations.targets import Target, list_kinds

_UNSUPPORTED_PREFIXES = (
    "tt.descriptor_",
    "tt.experimental_",
    "tt.make_tensor_descriptor",
    "ttng.",
    "ttg.",
)
# PTX that reads or writes memory, which no check looks into.
_ASSEMBLY_ACCESS = re.compile(r"(?<![\w.%])(?:ld|ldu|st|atom|red|multimem|cp\.async)(?:\.\w+)+")


class InstrumentationRefused(Exception):
    """A kernel that cannot be checked and runs unchanged; the message says why."""


@dataclass(frozen=True, slots=True)
class InstrumentedGraph:
    graph: KernelGraph
    sites: tuple[OperationSite, ...]
    overflow_sites: tuple[OperationSite, ...]
    unchecked_accesses: dict[str, int]  # the number of accesses without a check, by the reason


def instrument_graph(
    graph: KernelGraph, request: InstrumentationRequest, threads_per_program: int
) -> InstrumentedGraph:
    return _GraphInstrumenter(graph, request, threads_per_program).instrument()


class _GraphInstrumenter:
    def __init__(
        self, graph: KernelGraph, request: InstrumentationRequest, threads_per_program: int
    ) -> None:
        _refuse_unsupported(graph)
        checks = request.checks
        values = (value for each in graph.walk() for value in (*each.results, *each.operands))
        arguments = (value for block in _list_blocks(graph.body) for value in block.arguments)
        self._code = code = GraphBuilder([*values, *arguments])
        heads = dict(zip(request.leading_parameters, graph.parameters, strict=False))
        if SUBGRID_CHECK in checks:
            subgrid_values = [heads[name] for name in SUBGRID_PARAMETERS]
            graph = rewrite_program_ids(graph, code, subgrid_values)
        contiguity = AxisContiguity(graph)
        rows = AccessRows(graph, code, contiguity)
        self._graph = graph = rows.graph
        self._emitter = ReportEmitter(code, heads["report"], heads["launch"], threads_per_program)
        self._overflows = OverflowTracker(
            code,
            _find_tracked_integers(graph, rows, checks),
            ValueRanges(graph),
            heads.get(LINE_CHECK),
        )
        self._bounds_tracker = PointerBoundsTracker(
            graph, code, _map_extents(graph, request), heads["report"]
        )
        grid = ProgramGrid(code, self._bounds_tracker.entry_operations)
        rules = None
        if RULES_CHECK in checks:
            self._refuse_rules_of_unknown_pointers()
            rules = AccessRuleTable(code, heads["rules"], self._bounds_tracker, grid)
        races = None
        is_synchronized = "races" in checks and flow.has_program_synchronization(graph)
        if "races" in checks and not is_synchronized:
            shadow_values = heads["launch_number_address"], heads["shadow"]
            races = RaceTables(
                graph, shadow_values, request.overlapping_pointers, grid, code, self._bounds_tracker
            )
        self._access_checks = AccessChecks(
            code,
            self._emitter,
            rows,
            contiguity,
            self._overflows,
            self._bounds_tracker,
            rules,
            races,
            list_kinds(Target.TRITON_GPU, checks),
            # A site has few records: with out-of-bounds reports, an overflow may find none left.
            report_bounds=LINE_CHECK not in checks,
        )
        if is_synchronized:
            reason = "races, as its programs may tell each other something"
            self._access_checks.unchecked_accesses[reason] = sum(
                each.name in ACCESS_OPERATIONS for each in graph.walk()
            )
        self._control_flow = ControlFlowRewriter(
            code,
            self._emitter,
            self._overflows,
            self._bounds_tracker,
            self._access_checks,
            self._rewrite_block,
        )

    def instrument(self) -> InstrumentedGraph:
        entry, *targets = self._graph.body.blocks
        self._control_flow.add_branch_targets(targets)
        first, *others = map(self._rewrite_block, (entry, *targets))
        operations = (*self._bounds_tracker.entry_operations, *first.operations)
        blocks = (
            replace(first, operations=operations),
            *map(self._control_flow.add_block_arguments, others),
        )
        return InstrumentedGraph(
            replace(self._graph, body=IRRegion(blocks)),
            tuple(self._emitter.sites),
            tuple(map(self._make_overflow_site, self._overflows.overflowing_operations)),
            dict(self._access_checks.unchecked_accesses),
        )

    def _refuse_rules_of_unknown_pointers(self) -> None:
        for operation in self._graph.walk():
            if (
                operation.name in ACCESS_OPERATIONS
                and self._bounds_tracker.origins[operation.operands[0]] is None
            ):
                raise InstrumentationRefused(
                    "access rules do not apply to a pointer that is no one argument's"
                )

    def _make_overflow_site(self, operation: IROperation) -> OperationSite:
        signed = self._overflows.is_signed(operation.result)
        element = operation.result.type.element
        return OperationSite(
            OVERFLOW_SYMBOLS[operation.name], element if signed else f"u{element}", operation.source
        )

    def _rewrite_block(self, block: IRBlock) -> IRBlock:
        code = self._code
        with code.insert_into([]) as operations:
            for operation in block.operations:
                code.source = operation.source
                if operation.name in ACCESS_OPERATIONS:
                    self._access_checks.emit_access(operation)
                    self._bounds_tracker.track_operation(operation)
                elif operation.name in CONTROL_FLOW_OPERATIONS:
                    self._control_flow.rewrite(operation)
                elif operation.name == "tt.assert":
                    self._rewrite_assertion(operation)
                else:
                    code.operations.append(operation)
                    self._overflows.track_operation(operation)
                    self._bounds_tracker.track_operation(operation)
        return IRBlock(block.label, block.arguments, tuple(operations))

    def _rewrite_assertion(self, operation: IROperation) -> None:
        """Report the kernel's own assertion, where a failure would lose the device."""
        code, [condition] = self._code, operation.operands
        word = code.number_where(code.negate(condition), to_word_bit(ViolationKind.ASSERTION))
        no_address = code.constant(0, condition.type.with_element("i64"))
        message = operation.attributes.get("message", "").strip('"')
        self._emitter.report(OperationSite(message, "i1", operation.source), word, no_address)


def _refuse_unsupported(graph: KernelGraph) -> None:
    if graph.functions:
        names = ", ".join(graph.functions)
        raise InstrumentationRefused(f"it calls {names}, which is not inlined")
    for operation in graph.walk():
        unsupported = operation.name.startswith(_UNSUPPORTED_PREFIXES)
        if unsupported and not operation.name.endswith("barrier"):
            raise InstrumentationRefused(f"it uses {operation.name}")
        if access := _ASSEMBLY_ACCESS.search(operation.attributes.get("asm_string", "")):
            raise InstrumentationRefused(f"its assembly accesses memory: {access[0]}")


def _find_tracked_integers(
    graph: KernelGraph, rows: AccessRows, checks: tuple[str, ...]
) -> flow.AddressIntegers:
    """Find the integers that lead to an address and may overflow."""
    if "overflow" not in checks:
        return flow.AddressIntegers({}, frozenset())
    pointers: list[IRValue] = []
    for row in rows.by_access.values():
        pointers += (row.first_pointer, row.last_pointer)
    integers = flow.analyze_addresses(graph, pointers)
    return replace(integers, may_overflow=integers.may_overflow - rows.non_overflowing)


def _map_extents(graph: KernelGraph, request: InstrumentationRequest) -> dict[int, IRValue]:
    """Return the extent of each of the kernel's pointers, by the pointer's parameter."""
    first = len(request.leading_parameters)
    extents = graph.parameters[first : first + request.pointer_count]
    pointers = [
        position
        for position, parameter in enumerate(graph.parameters)
        if parameter.type.is_pointer and position >= first
    ]
    if len(pointers) != request.pointer_count:
        raise InstrumentationRefused(
            f"{len(pointers)} pointers and {request.pointer_count} extents"
        )
    return dict(zip(pointers, extents, strict=True))


def _list_blocks(region: IRRegion) -> list[IRBlock]:
    blocks = list(region.blocks)
    for block in region.blocks:
        for operation in block.operations:
            for inner in operation.regions:
                blocks += _list_blocks(inner)
    return blocks
