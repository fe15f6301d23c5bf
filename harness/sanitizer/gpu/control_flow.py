"""Loops, branches and jumps that carry overflow states along with the integers that they carry.

Invariant: where control flow merges, the state of a merged integer holds the first overflow on the
path that was taken. Example: in

    at = row * stride
    for _ in range(n): at += step

the state of `at` is the product's overflow, or else the first iteration's whose sum overflowed. The
loop gets one more carried value (three IR values: word, left, right) for the sum. The product's
state is known outside, so it is not carried. A body is rewritten until no iteration adds a state
or moves a pointer to other memory; the number of sites does not grow with these attempts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from harness.sanitizer.gpu.access_checks import AccessChecks
from harness.sanitizer.gpu.graph_builder import GraphBuilder
from harness.sanitizer.gpu.overflow_tracking import (
    OverflowState,
    OverflowStates,
    OverflowTracker,
    SpreadOverflowState,
)
from harness.sanitizer.gpu.pointer_bounds import PointerBoundsTracker
from harness.sanitizer.gpu.report_emission import ReportEmitter
from harness.sanitizer.ir import flow
from harness.sanitizer.ir.graph import IRBlock, IROperation, IRRegion, IRValue, SourceLocation

CarriedStates = dict[int, OverflowState]  # by the position of the integer among carried values


class ControlFlowRewriter:
    def __init__(
        self,
        code: GraphBuilder,
        emitter: ReportEmitter,
        overflows: OverflowTracker,
        bounds_tracker: PointerBoundsTracker,
        access_checks: AccessChecks,
        rewrite_block: Callable[[IRBlock], IRBlock],
    ) -> None:
        self._code, self._emitter, self._overflows = code, emitter, overflows
        self._bounds_tracker, self._access_checks = bounds_tracker, access_checks
        self._rewrite_block = rewrite_block
        self._moving_pointers: set[IRValue] = set()  # pointers that iterations move to other memory
        self._states_by_label: dict[str, CarriedStates] = {}  # states that jumps to a block pass

    def add_branch_targets(self, blocks: Sequence[IRBlock]) -> None:
        self._states_by_label = {
            block.label: self._make_carried_states(block.arguments) for block in blocks
        }

    def add_block_arguments(self, block: IRBlock) -> IRBlock:
        more = _flatten_states(self._states_by_label[block.label])
        return replace(block, arguments=(*block.arguments, *more))

    def rewrite(self, operation: IROperation) -> None:
        match operation.name:
            case "scf.for":
                self._rewrite_for(operation)
            case "scf.while":
                self._rewrite_while(operation)
            case "scf.if":
                self._rewrite_if(operation)
            case _:
                self._rewrite_jump(operation)

    def _rewrite_for(self, operation: IROperation) -> None:
        overflows, bounds, sites = self._overflows, self._bounds_tracker, self._emitter.sites
        body = operation.regions[0].block
        arguments, initial = body.arguments[1:], operation.operands[3:]
        before = [
            overflows.get_states(value) if argument in overflows else ()
            for argument, value in zip(arguments, initial, strict=True)
        ]
        carried: CarriedStates = {}  # the merged states of all iterations so far
        replaced: set[int] = set()  # positions at which an iteration may drop the initial state
        while True:
            for position, argument in enumerate(arguments):
                if argument not in self._moving_pointers:
                    bounds.set_bounds(argument, bounds.get_bounds(initial[position]))
                states = self._get_carried_states(carried, position, argument)
                overflows.set_states(argument, (*before[position], *states))
            site_count, overflow_count = len(sites), len(overflows.overflowing_operations)
            unchecked = self._access_checks.unchecked_accesses.copy()
            with self._emitter.collect_reports(in_loop=True) as pending:
                block = self._rewrite_block(body)
            yielded = [overflows.get_states(value) for value in block.operations[-1].operands]
            grown: CarriedStates = {}
            for position, argument in enumerate(arguments):
                shape = self._find_carried_shape(
                    argument, yielded[position], before[position], carried.get(position)
                )
                if shape is not None:
                    grown[position] = overflows.new_state(shape)
            moved = self._drop_moving_bounds(arguments, block)
            if not grown and not moved:
                break
            for position in grown:
                if not set(before[position]) <= set(yielded[position]):
                    before[position] = ()
                    replaced.add(position)
            carried |= grown
            del sites[site_count:], overflows.overflowing_operations[overflow_count:]
            self._access_checks.unchecked_accesses = unchecked
        entering = [
            overflows.merge_carried(
                overflows.get_states(initial[position]) if position in replaced else (),
                state.word.type.shape,
            )
            for position, state in carried.items()
        ]
        for argument, result in zip(arguments, operation.results, strict=True):
            bounds.set_bounds(result, bounds.get_bounds(argument))
        loop, block = self._emitter.carry_through_loop(operation, block, pending)
        block = replace(block, arguments=(*block.arguments, *_flatten_states(carried)))
        operands = (*loop.operands, *(value for state in entering for value in state))
        results = self._append_operation(loop, operands, (block,), carried, before)
        for position, result in enumerate(operation.results):
            states = self._get_carried_states(results, position, result)
            overflows.set_states(result, (*before[position], *states))
        self._emitter.emit_carried(pending, loop.results[len(operation.results) :])

    def _drop_moving_bounds(self, arguments: Sequence[IRValue], block: IRBlock) -> bool:
        """Drop the bounds of pointers that an iteration moves to other memory; True if it did."""
        bounds = self._bounds_tracker
        moved = [
            argument
            for argument, value in zip(arguments, block.operations[-1].operands, strict=True)
            if bounds.get_bounds(argument) is not None
            and bounds.get_bounds(argument) != bounds.get_bounds(value)
        ]
        for argument in moved:
            bounds.set_bounds(argument, None)
        self._moving_pointers.update(moved)
        return bool(moved)

    def _find_carried_shape(
        self,
        argument: IRValue,
        yielded: OverflowStates,
        before: OverflowStates,
        carried: OverflowState | None,
    ) -> tuple[int, ...] | None:
        """Find the shape of the state that an iteration adds; None if the carried one suffices."""
        if argument not in self._overflows:
            return None
        keeps_initial = set(before) <= set(yielded)
        new = set(yielded) - set(self._overflows.get_states(argument))
        if not new and keeps_initial:
            return None
        is_scalar = keeps_initial and all(state.is_scalar for state in new)
        shape = () if is_scalar else argument.type.shape
        if carried is not None and keeps_initial and shape in ((), carried.word.type.shape):
            return None
        return shape

    @staticmethod
    def _get_carried_states(
        carried: CarriedStates, position: int, value: IRValue
    ) -> OverflowStates:
        if position not in carried:
            return ()
        state = carried[position]
        if state.word.type.shape == value.type.shape:
            return (SpreadOverflowState(state),)
        splat = IROperation("tt.splat", (), (value,), {}, SourceLocation())
        return (SpreadOverflowState(state, (splat,)),)

    def _rewrite_while(self, operation: IROperation) -> None:
        """Rewrite a while loop: both regions carry a state of each tracked integer."""
        before, after = (region.block for region in operation.regions)
        entering = self._make_carried_states(before.arguments)
        # The first region passes its values to the second one, and they are the loop's results.
        tracked = [
            position
            for position, pair in enumerate(zip(after.arguments, operation.results, strict=True))
            if any(value in self._overflows for value in pair)
        ]
        passed, results = (
            self._make_carried_states(values, tracked)
            for values in (after.arguments, operation.results)
        )
        first, second = (
            self._rewrite_block_outside_loop(
                replace(block, arguments=(*block.arguments, *_flatten_states(states)))
            )
            for block, states in ((before, entering), (after, passed))
        )
        initial = {
            position: self._merge_for_carrying(operation.operands[position])
            for position in entering
        }
        first = self._add_yielded_states(first, passed, first_operand=1)
        second = self._add_yielded_states(second, entering)
        self._code.operations.append(
            replace(
                operation,
                operands=(*operation.operands, *_flatten_states(initial)),
                results=(*operation.results, *_flatten_states(results)),
                regions=(IRRegion((first,)), IRRegion((second,))),
            )
        )

    def _rewrite_if(self, operation: IROperation) -> None:
        blocks = [
            self._rewrite_block_outside_loop(region.block)
            for region in operation.regions
            if region.blocks
        ]
        carried: CarriedStates = {}
        for position, result in enumerate(operation.results):
            branches = [
                self._overflows.get_states(block.operations[-1].operands[position])
                for block in blocks
            ]
            if result in self._overflows and any(branches):
                is_scalar = all(state.is_scalar for states in branches for state in states)
                shape = () if is_scalar else result.type.shape
                carried[position] = self._overflows.new_state(shape)
        results = self._append_operation(operation, operation.operands, blocks, carried)
        for position, result in enumerate(operation.results):
            bounds = [
                self._bounds_tracker.get_bounds(block.operations[-1].operands[position])
                for block in blocks
            ]
            if all(each is not None and each.known_at_entry for each in bounds):
                selected = self._bounds_tracker.select_bounds(operation.operands[0], *bounds)
                self._bounds_tracker.set_bounds(result, selected)
            states = self._get_carried_states(results, position, result)
            self._overflows.set_states(result, states)

    def _rewrite_jump(self, operation: IROperation) -> None:
        """Pass each target block the states of the values that it gets."""
        operands = operation.operands[:1] if operation.name == "cf.cond_br" else ()
        sizes = [len(operands)]
        for label, values in flow.list_branch_targets(operation):
            states = {
                position: self._merge_for_carrying(values[position])
                for position in self._states_by_label[label]
            }
            passed = (*values, *_flatten_states(states))
            operands = (*operands, *passed)
            sizes.append(len(passed))
        attributes = dict(operation.attributes)
        if operation.name == "cf.cond_br":
            attributes["operandSegmentSizes"] = f"array<i32: {', '.join(map(str, sizes))}>"
        self._code.operations.append(replace(operation, operands=operands, attributes=attributes))

    def _rewrite_block_outside_loop(self, block: IRBlock) -> IRBlock:
        with self._emitter.collect_reports(in_loop=False):
            return self._rewrite_block(block)

    def _make_carried_states(
        self, values: Sequence[IRValue], positions: Sequence[int] = ()
    ) -> CarriedStates:
        """Make a new state for each value at these positions, or else for each tracked integer."""
        chosen = positions or [
            position for position, value in enumerate(values) if value in self._overflows
        ]
        states = {
            position: self._overflows.new_state(values[position].type.shape) for position in chosen
        }
        for position, state in states.items():
            self._overflows.set_states(values[position], (SpreadOverflowState(state),))
        return states

    def _merge_for_carrying(self, value: IRValue) -> OverflowState:
        return self._overflows.merge_carried(self._overflows.get_states(value), value.type.shape)

    def _append_operation(
        self,
        operation: IROperation,
        operands: tuple[IRValue, ...],
        blocks: Sequence[IRBlock],
        carried: CarriedStates,
        known: Sequence[OverflowStates] = (),
    ) -> CarriedStates:
        """Append the operation over blocks that yield their states; returns its results' states.

        `known`: by position, states that need not be yielded.
        """
        regions = [IRRegion((self._add_yielded_states(block, carried, known),)) for block in blocks]
        regions += [IRRegion(()) for _ in operation.regions[len(regions) :]]
        results = {
            position: self._overflows.new_state(state.word.type.shape)
            for position, state in carried.items()
        }
        self._code.operations.append(
            replace(
                operation,
                operands=operands,
                results=(*operation.results, *_flatten_states(results)),
                regions=tuple(regions),
            )
        )
        return results

    def _add_yielded_states(
        self,
        block: IRBlock,
        carried: CarriedStates,
        known: Sequence[OverflowStates] = (),
        first_operand: int = 0,
    ) -> IRBlock:
        """`first_operand`: the first operand of the block's terminator that is a yielded value."""
        *operations, terminator = block.operations
        more: list[IRValue] = []
        with self._code.insert_into(operations):
            for position, state in carried.items():
                states = self._overflows.get_states(terminator.operands[first_operand + position])
                new = [each for each in states if not known or each not in known[position]]
                more += self._overflows.merge_carried(new, state.word.type.shape)
        terminator = replace(terminator, operands=(*terminator.operands, *more))
        return replace(block, operations=(*operations, terminator))


def _flatten_states(states: CarriedStates) -> tuple[IRValue, ...]:
    return tuple(value for state in states.values() for value in state)
