"""A graph with checks written into it: bounds, wraps and fences in front of each access.

What is an access, which argument its pointer came from and which integers lead to it is `flow`'s
to say, as for the executor on a CPU. The check's parameters stand before the kernel's own: the
report, the launch's number, a table of fences where there are any, and for each pointer how many
bytes it may reach. What loops and branches hand on is handed on with what is known of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.kernels.cpu.scratch_values import OperationSite
from harness.kernels.gpu import (
    LINE_CHECK,
    SUBGRID_CHECK,
    SUBGRID_PARAMETERS,
    InstrumentationRequest,
    assertions,
)
from harness.kernels.gpu.access_checks import ACCESS_OPERATIONS, AccessChecks
from harness.kernels.gpu.access_rows import AccessRows
from harness.kernels.gpu.access_rules import AccessRuleChecks
from harness.kernels.gpu.axis_contiguity import AxisContiguity
from harness.kernels.gpu.graph_builder import GraphBuilder
from harness.kernels.gpu.overflow_tracking import (
    OVERFLOW_SYMBOLS,
    OverflowState,
    OverflowStates,
    OverflowTracker,
    SpreadOverflowState,
)
from harness.kernels.gpu.pointer_bounds import PointerBoundsTracker
from harness.kernels.gpu.program_grid import ProgramGrid
from harness.kernels.gpu.race_checks import RaceChecks
from harness.kernels.gpu.report_emission import ReportEmitter
from harness.kernels.gpu.subgrid import rewrite_program_ids
from harness.kernels.gpu.uninitialized_reads import UninitializedReadChecks
from harness.kernels.ir import flow
from harness.kernels.ir.graph import (
    IRBlock,
    IROperation,
    IRRegion,
    IRValue,
    KernelGraph,
    SourceLocation,
)
from harness.kernels.ir.intervals import ValueRanges

_UNSUPPORTED_PREFIXES = (
    "tt.descriptor_",
    "tt.experimental_",
    "tt.make_tensor_descriptor",
    "ttng.",
    "ttg.",
)


class InstrumentationRefused(Exception):
    """A kernel that runs as it is, and why."""


@dataclass(frozen=True, slots=True)
class InstrumentedGraph:
    graph: KernelGraph
    sites: tuple[OperationSite, ...]
    overflow_sites: tuple[OperationSite, ...]
    unchecked_accesses: dict[str, int]  # accesses without a check, by the reason


def instrument_graph(
    graph: KernelGraph, request: InstrumentationRequest, threads_per_program: int
) -> InstrumentedGraph:
    """`threads`: of a program."""
    return _GraphInstrumenter(graph, request, threads_per_program).instrument()


class _GraphInstrumenter:
    def __init__(
        self, graph: KernelGraph, request: InstrumentationRequest, threads_per_program: int
    ) -> None:
        if graph.functions:
            raise InstrumentationRefused(
                f"it calls {', '.join(graph.functions)}, which is not inlined"
            )
        for operation in graph.walk():
            if operation.name.startswith(_UNSUPPORTED_PREFIXES) and not operation.name.endswith(
                "barrier"
            ):
                raise InstrumentationRefused(f"it uses {operation.name}")
        values = (value for one in graph.walk() for value in (*one.results, *one.operands))
        inner = (value for block in _list_blocks(graph.body) for value in block.arguments)
        self._code = GraphBuilder([*values, *inner])
        heads = dict(zip(request.leading_parameters, graph.parameters, strict=False))
        if SUBGRID_CHECK in request.checks:
            graph = rewrite_program_ids(
                graph, self._code, [heads[name] for name in SUBGRID_PARAMETERS]
            )
        self._contiguity = AxisContiguity(graph)
        self._rows = AccessRows(
            graph,
            self._code,
            self._contiguity,
            {name: mask for name, (_, mask) in ACCESS_OPERATIONS.items()},
        )
        self._graph = graph = self._rows.graph
        watched = flow.AddressIntegers({}, frozenset())
        if "wraps" in request.checks:
            ends = [
                end
                for row in self._rows.by_access.values()
                for end in (row.first_pointer, row.last_pointer)
            ]
            watched = flow.analyze_addresses(graph, ends)
        suspects = watched.may_overflow - self._rows.non_overflowing
        named = len(request.leading_parameters)
        watched = replace(watched, may_overflow=suspects)
        self._overflows = OverflowTracker(
            self._code, watched, ValueRanges(graph), heads.get(LINE_CHECK)
        )
        extents = graph.parameters[named : named + request.pointer_count]
        self._emitter = ReportEmitter(
            self._code, heads["report"], heads["launch"], threads_per_program
        )
        own = [
            place
            for place, parameter in enumerate(graph.parameters)
            if parameter.type.is_pointer and place >= named
        ]
        if len(own) != request.pointer_count:
            raise InstrumentationRefused(f"{len(own)} pointers and {request.pointer_count} extents")
        held = dict(zip(own, extents, strict=True))
        self._bounds_tracker = PointerBoundsTracker(graph, self._code, held, heads["report"])
        lists = heads.get("fences")
        if lists is not None and any(
            one.name in ACCESS_OPERATIONS and self._bounds_tracker.origins[one.operands[0]] is None
            for one in graph.walk()
        ):
            raise InstrumentationRefused(
                "fences are not asked of a pointer that is no one argument's"
            )
        self._sites: list[OperationSite] = []
        grid = ProgramGrid(self._code, self._bounds_tracker.entry_operations)
        places = {place: number for number, place in enumerate(own)}
        self._access_checks = AccessChecks(
            self._code,
            self._emitter,
            self._rows,
            self._contiguity,
            self._overflows,
            self._bounds_tracker,
            None
            if lists is None
            else AccessRuleChecks(self._code, lists, self._bounds_tracker, grid),
            places,
            self._sites,
            "bounds" in request.checks,
            LINE_CHECK
            not in request.checks,  # or a line's wrap would find its site's records taken
        )
        given = self._code, self._emitter, self._bounds_tracker, places, self._sites
        self._uninitialized_checks = (
            UninitializedReadChecks(*given) if "unwritten" in request.checks else None
        )
        self._race_checks = (
            self._make_race_checks(heads, request, grid, *given)
            if "races" in request.checks
            else None
        )
        self._moving_pointers: set[IRValue] = (
            set()
        )  # what loops hand on and is not always in one place
        self._block_states: dict[
            str, dict[int, OverflowState]
        ] = {}  # by block, what jumps to it hand on besides

    def _make_race_checks(
        self, leading_values: dict[str, IRValue], request: InstrumentationRequest, *given: Any
    ) -> RaceChecks | None:
        if flow.has_program_synchronization(self._graph):
            many = sum(one.name in ACCESS_OPERATIONS for one in self._graph.walk())
            self._access_checks.unchecked_accesses[
                "races, as its programs may tell each other something"
            ] = many
            return None
        return RaceChecks(
            self._graph,
            (leading_values["turn"], leading_values["shadow"]),
            request.overlapping_pointers,
            *given,
        )

    def instrument(self) -> InstrumentedGraph:
        entry, *targets = self._graph.body.blocks
        self._block_states = {
            block.label: self._make_carried_states(block.arguments) for block in targets
        }
        first, *others = map(self._rewrite_block, (entry, *targets))
        first = replace(
            first, operations=(*self._bounds_tracker.entry_operations, *first.operations)
        )
        blocks = (first, *map(self._add_block_arguments, others))
        return InstrumentedGraph(
            replace(self._graph, body=IRRegion(blocks)),
            tuple(self._sites),
            tuple(
                self._make_overflow_site(operation)
                for operation in self._overflows.overflowing_operations
            ),
            dict(self._access_checks.unchecked_accesses),
        )

    def _add_block_arguments(self, block: IRBlock) -> IRBlock:
        more = _flatten_states(self._block_states[block.label])
        return replace(block, arguments=(*block.arguments, *more))

    def _make_overflow_site(self, operation: IROperation) -> OperationSite:
        signed = self._overflows.is_signed(operation.result)
        element = operation.result.type.element
        return OperationSite(
            OVERFLOW_SYMBOLS[operation.name], element if signed else f"u{element}", operation.source
        )

    # The walk

    def _rewrite_block(self, block: IRBlock) -> IRBlock:
        code = self._code
        outer, code.operations = code.operations, []
        for operation in block.operations:
            code.source = operation.source
            if operation.name in ACCESS_OPERATIONS:
                self._rewrite_access(operation)
                self._bounds_tracker.track_operation(operation)
            elif operation.name == "scf.for":
                self._rewrite_for(operation)
            elif operation.name == "scf.while":
                self._rewrite_while(operation)
            elif operation.name == "scf.if":
                self._rewrite_if(operation)
            elif operation.name in ("cf.br", "cf.cond_br"):
                self._rewrite_jump(operation)
            elif operation.name == "tt.assert":
                assertions.rewrite_assertion(operation, code, self._emitter, self._sites)
            else:
                code.operations.append(operation)
                self._overflows.track_operation(operation)
                self._bounds_tracker.track_operation(operation)
        made, code.operations = code.operations, outer
        return IRBlock(block.label, block.arguments, tuple(made))

    def _rewrite_access(self, operation: IROperation) -> None:
        made = self._access_checks.add_checks(operation)
        if self._race_checks is not None:
            self._race_checks.add_check(made)
        self._code.operations.append(made)
        if self._uninitialized_checks is not None:
            self._uninitialized_checks.add_check(made)

    def _rewrite_block_outside_loop(self, block: IRBlock) -> IRBlock:
        with self._emitter.collect_reports(in_loop=False):
            return self._rewrite_block(block)

    def _rewrite_for(self, operation: IROperation) -> None:
        """A loop hands on what wraps inside of it; what wrapped before, and stays, is known."""
        twins, accesses, body = self._overflows, self._access_checks, operation.regions[0].block
        own, given = body.arguments[1:], operation.operands[3:]
        before = [
            twins.get_states(value) if inside in twins else ()
            for inside, value in zip(own, given, strict=True)
        ]
        carried: dict[int, OverflowState] = {}  # by place, what stands for all turns so far
        first: set[int] = set()  # places at which a turn may leave what was there before
        while True:
            for place, inside in enumerate(own):
                if inside not in self._moving_pointers:
                    self._bounds_tracker.set_bounds(
                        inside, self._bounds_tracker.get_bounds(given[place])
                    )
                twins.set_states(
                    inside, (*before[place], *self._get_carried_states(carried, place, inside))
                )
            at = (
                len(self._sites),
                len(twins.overflowing_operations),
                accesses.unchecked_accesses.copy(),
            )
            with self._emitter.collect_reports(in_loop=True) as later:
                block = self._rewrite_block(body)
            left = [twins.get_states(value) for value in block.operations[-1].operands]
            grown = {
                place: self._overflows.new_state(shape)
                for place, inside in enumerate(own)
                if (
                    shape := self._find_carried_shape(
                        inside, left[place], before[place], carried.get(place)
                    )
                )
                is not None
            }
            unsteady = self._drop_moving_bounds(own, block)
            if not grown and not unsteady:
                break
            for place in grown:
                if not set(before[place]) <= set(left[place]):
                    before[place] = ()
                    first.add(place)
            carried |= grown
            del self._sites[at[0] :], twins.overflowing_operations[at[1] :]
            self._access_checks.unchecked_accesses = at[2]
        begun = tuple(
            twins.merge_carried(
                twins.get_states(given[place]) if place in first else (), twin.word.type.shape
            )
            for place, twin in carried.items()
        )
        for inside, result in zip(own, operation.results, strict=True):
            self._bounds_tracker.set_bounds(result, self._bounds_tracker.get_bounds(inside))
        loop, block = self._emitter.carry_through_loop(operation, block, later)
        block = replace(block, arguments=(*block.arguments, *_flatten_states(carried)))
        operands = (*loop.operands, *(value for twin in begun for value in twin))
        made = self._append_control_flow(loop, operands, (block,), carried, before)
        kept = loop.results[len(operation.results) :]
        for place, result in enumerate(operation.results):
            twins.set_states(
                result, (*before[place], *self._get_carried_states(made, place, result))
            )
        self._emitter.emit_carried(later, kept)

    def _drop_moving_bounds(self, loop_arguments: Sequence[IRValue], block: IRBlock) -> bool:
        """Whether a turn hands on a pointer into something else than it was handed, once more."""
        moved = [
            inside
            for inside, value in zip(loop_arguments, block.operations[-1].operands, strict=True)
            if (reach := self._bounds_tracker.get_bounds(inside)) is not None
            and reach != self._bounds_tracker.get_bounds(value)
        ]
        for inside in moved:
            self._bounds_tracker.set_bounds(inside, None)
        self._moving_pointers.update(moved)
        return bool(moved)

    def _find_carried_shape(
        self,
        loop_argument: IRValue,
        yielded: OverflowStates,
        before: OverflowStates,
        carried: OverflowState | None,
    ) -> tuple[int, ...] | None:
        """The shape in which a turn hands on what it adds, where it has none that will do."""
        if loop_argument not in self._overflows:
            return None
        stays = set(before) <= set(yielded)
        new = set(yielded) - set(self._overflows.get_states(loop_argument))
        if not new and stays:
            return None
        shape = () if stays and all(part.is_scalar for part in new) else loop_argument.type.shape
        enough = carried is not None and stays and shape in ((), carried.word.type.shape)
        return None if enough else shape

    @staticmethod
    def _get_carried_states(
        carried: dict[int, OverflowState], position: int, value: IRValue
    ) -> OverflowStates:
        if position not in carried:
            return ()
        twin = carried[position]
        if twin.word.type.shape == value.type.shape:
            return (SpreadOverflowState(twin),)
        spread = IROperation("tt.splat", (), (value,), {}, SourceLocation())
        return (SpreadOverflowState(twin, (spread,)),)

    def _rewrite_while(self, operation: IROperation) -> None:
        """Both of its halves hand on a twin of each number that addresses are made of."""
        before, after = (region.block for region in operation.regions)
        given = self._make_carried_states(before.arguments)
        # What the first half hands on goes to the second one, and is what the loop makes.
        watched = [
            place
            for place, both in enumerate(zip(after.arguments, operation.results, strict=True))
            if any(value in self._overflows for value in both)
        ]
        made, found = (
            self._make_carried_states(values, watched)
            for values in (after.arguments, operation.results)
        )
        halves = [
            replace(block, arguments=(*block.arguments, *_flatten_states(twins)))
            for block, twins in ((before, given), (after, made))
        ]
        first, second = map(self._rewrite_block_outside_loop, halves)
        begun = {place: self._merge_for_carrying(operation.operands[place]) for place in given}
        regions = [
            IRRegion((self._add_yielded_states(first, made, first_operand=1),)),
            IRRegion((self._add_yielded_states(second, given),)),
        ]
        self._code.operations.append(
            replace(
                operation,
                operands=(*operation.operands, *_flatten_states(begun)),
                results=(*operation.results, *_flatten_states(found)),
                regions=tuple(regions),
            )
        )

    def _make_carried_states(
        self, values: Sequence[IRValue], positions: Sequence[int] = ()
    ) -> dict[int, OverflowState]:
        """By place, a twin of each of these, or of all that may be made of what wrapped."""
        chosen = positions or [
            place for place, value in enumerate(values) if value in self._overflows
        ]
        handed = {place: self._overflows.new_state(values[place].type.shape) for place in chosen}
        for place, twin in handed.items():
            self._overflows.set_states(values[place], (SpreadOverflowState(twin),))
        return handed

    def _merge_for_carrying(self, value: IRValue) -> OverflowState:
        return self._overflows.merge_carried(self._overflows.get_states(value), value.type.shape)

    def _rewrite_if(self, operation: IROperation) -> None:
        blocks = [
            self._rewrite_block_outside_loop(region.block)
            for region in operation.regions
            if region.blocks
        ]
        carried: dict[int, OverflowState] = {}
        for place, result in enumerate(operation.results):
            parts = [
                self._overflows.get_states(block.operations[-1].operands[place]) for block in blocks
            ]
            if result in self._overflows and any(parts):
                flat = all(part.is_scalar for some in parts for part in some)
                carried[place] = self._overflows.new_state(() if flat else result.type.shape)
        made = self._append_control_flow(operation, operation.operands, blocks, carried)
        for place, result in enumerate(operation.results):
            ways = [
                self._bounds_tracker.get_bounds(block.operations[-1].operands[place])
                for block in blocks
            ]
            if all(way is not None and way.known_at_entry for way in ways):
                self._bounds_tracker.set_bounds(
                    result, self._bounds_tracker.select_bounds(operation.operands[0], *ways)
                )
            self._overflows.set_states(result, self._get_carried_states(made, place, result))

    def _rewrite_jump(self, operation: IROperation) -> None:
        """Another block is handed the twins of what it is handed."""
        ways = []
        for label, values in flow.list_branch_targets(operation):
            handed = {
                place: self._merge_for_carrying(values[place])
                for place in self._block_states[label]
            }
            ways.append((*values, *_flatten_states(handed)))
        condition = operation.operands[:1] if operation.name == "cf.cond_br" else ()
        made = (*condition, *(value for way in ways for value in way))
        sizes = ", ".join(map(str, [1, *map(len, ways)]))
        more = {"operandSegmentSizes": f"array<i32: {sizes}>"} if condition else {}
        attributes = {**operation.attributes, **more}
        self._code.operations.append(replace(operation, operands=made, attributes=attributes))

    def _append_control_flow(
        self,
        operation: IROperation,
        operands: tuple[IRValue, ...],
        blocks: Sequence[IRBlock],
        carried: dict[int, OverflowState],
        known: Sequence[OverflowStates] = (),
    ) -> dict[int, OverflowState]:
        """The operation over these blocks, each of which hands its twins over; what it makes.

        `known`: by place, what need not be handed over.
        """
        ended = [self._add_yielded_states(block, carried, known) for block in blocks]
        regions = [IRRegion((block,)) for block in ended]
        regions += [IRRegion(()) for _ in operation.regions[len(regions) :]]
        made = {
            place: self._overflows.new_state(twin.word.type.shape)
            for place, twin in carried.items()
        }
        self._code.operations.append(
            replace(
                operation,
                operands=operands,
                results=(*operation.results, *_flatten_states(made)),
                regions=tuple(regions),
            )
        )
        return made

    def _add_yielded_states(
        self,
        block: IRBlock,
        carried: dict[int, OverflowState],
        known: Sequence[OverflowStates] = (),
        first_operand: int = 0,
    ) -> IRBlock:
        """`first`: which of the last operation's operands is the first to be handed on."""
        *before, last = block.operations
        more: list[IRValue] = []
        with self._code.insert_into(before):
            for place, twin in carried.items():
                parts = self._overflows.get_states(last.operands[first_operand + place])
                new = [part for part in parts if not known or part not in known[place]]
                more += self._overflows.merge_carried(new, twin.word.type.shape)
        ended = replace(last, operands=(*last.operands, *more))
        return replace(block, operations=(*before, ended))


def _flatten_states(states: dict[int, OverflowState]) -> tuple[IRValue, ...]:
    return tuple(value for twin in states.values() for value in twin)


def _list_blocks(region: IRRegion) -> list[IRBlock]:
    found = list(region.blocks)
    for block in region.blocks:
        for operation in block.operations:
            for inner in operation.regions:
                found += _list_blocks(inner)
    return found
