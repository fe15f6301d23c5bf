"""Lanes of tensors: fused loops over element-wise operations.

An element-wise operation is pending until something needs its result; then one loop computes the
result with everything pending that it depends on. Views (splat, broadcast, reshape) are never
computed: they map lanes to lanes. Example: `tl.store(p, a * b + c)` is one loop with a
product, a sum and a store to scratch, and then the checked access.
"""

from __future__ import annotations

from collections import defaultdict

from harness.sanitizer.cpu import elementwise_ops, view_ops
from harness.sanitizer.cpu.arithmetic import Arithmetic
from harness.sanitizer.cpu.overflow_tracking import LaneOverflowTracker
from harness.sanitizer.cpu.scratch_values import LaneCache, LaneRegister, ScratchValues
from harness.sanitizer.cpu.view_ops import ViewedLane
from harness.sanitizer.ir import flow
from harness.sanitizer.ir.graph import IROperation, IRValue, KernelGraph
from harness.sanitizer.ir.operations import LANE_PRESERVING


class LaneValues(ScratchValues):
    """Lanes of tensors, computed when something needs them."""

    def __init__(self, graph: KernelGraph, arithmetic: Arithmetic) -> None:
        super().__init__(graph)
        self.arithmetic = arithmetic
        self.approximations: dict[str, None] = {}  # what a GPU computes otherwise, in order
        self.pointer_origins = flow.find_pointer_origins(graph)
        self.overflows = LaneOverflowTracker(self)
        self.views: dict[IRValue, IROperation] = {}
        self.pending: dict[IRValue, IROperation] = {}
        self.users: dict[IRValue, list[IROperation]] = defaultdict(list)
        for operation in graph.walk():
            for operand in operation.operands:
                self.users[operand].append(operation)

    def emit_lane(self, value: IRValue, index: str, lane_cache: LaneCache) -> LaneRegister:
        """Compute one element of a value, once in each loop (`lane_cache`)."""
        if not value.type.shape:
            return self.scalars[value], self.overflows.scalars.get(value)
        key = (value, index)
        if key not in lane_cache:
            lane_cache[key] = self._emit_uncached_lane(value, index, lane_cache)
        return lane_cache[key]

    def _emit_uncached_lane(
        self, value: IRValue, index: str, lane_cache: LaneCache
    ) -> LaneRegister:
        if value in self.buffers:
            state_buffer = self.overflows.buffers.get(value)
            loaded = self.emit_lane_load(self.buffers[value], value.type.element, index)
            return loaded, None if state_buffer is None else self.emit_lane_load(
                state_buffer, "i32", index
            )
        if value in self.views:
            operation = self.views[value]
            lane = ViewedLane(self, operation, value, index, lane_cache)
            return view_ops.VIEW_EMITTERS[operation.name](lane)
        operation = self.pending[value]
        operands = [self.emit_lane(operand, index, lane_cache) for operand in operation.operands]
        return self.emit_elementwise(operation, operands)

    def emit_elementwise(
        self, operation: IROperation, operands: list[LaneRegister]
    ) -> LaneRegister:
        emit = elementwise_ops.ELEMENT_EMITTERS[operation.name]
        value = emit(self.code, operation, [register for register, _ in operands])
        return value, self.overflows.emit_result_state(operation, value, operands)

    def materialize(self, *values: IRValue) -> None:
        """Compute these tensors into scratch memory, unless they are there."""
        waiting: dict[int, list[IRValue]] = defaultdict(list)
        for value in values:
            if value.type.shape and value not in self.buffers:
                waiting[value.type.lanes].append(value)
        for lanes, targets in waiting.items():
            self._materialize_together(lanes, targets)

    def _materialize_together(self, lanes: int, targets: list[IRValue]) -> None:
        fused: dict[IRValue, None] = {}
        for target in targets:
            self._collect_fused_values(target, fused)
        for value in fused:
            users = self.users[value]
            if value not in targets and any(
                not user.results or user.results[0] not in fused for user in users
            ):
                targets.append(value)
        targets = [value for value in targets if value not in self.buffers]
        buffers = [(value, self.allocate_for_type(value.type)) for value in targets]
        state_buffers = [
            (value, self.allocate_scratch(4 * lanes))
            for value in targets
            if value in self.address_integers
        ]
        bases = {
            buffer: self.emit_buffer_address(buffer) for _, buffer in (*buffers, *state_buffers)
        }
        written_states = []
        with self.code.loop(lanes) as index:
            lane_cache: LaneCache = {}
            for value, buffer in buffers:
                self.emit_lane_store(
                    self.emit_lane(value, index, lane_cache)[0],
                    bases[buffer],
                    value.type.element,
                    index,
                )
            for value, buffer in state_buffers:
                state = self.emit_lane(value, index, lane_cache)[1]
                if state is not None:
                    written_states.append((value, buffer))
                    self.emit_lane_store(state, bases[buffer], "i32", index)
        self.buffers |= dict(buffers)
        self.overflows.buffers |= dict(written_states)
        for value in fused:
            self.pending.pop(value, None)

    def _collect_fused_values(self, value: IRValue, fused: dict[IRValue, None]) -> None:
        """Collect the values that a loop computes; materialize those it reads at other lanes."""
        if not value.type.shape or value in self.buffers or value in fused:
            return
        if value in self.views:
            operation = self.views[value]
            for operand in operation.operands:
                if operation.name in LANE_PRESERVING:
                    self._collect_fused_values(operand, fused)
                else:
                    self._materialize_sources(operand)
            return
        operation = self.pending[value]
        for operand in operation.operands:
            self._collect_fused_values(operand, fused)
        fused[value] = None

    def _materialize_sources(self, value: IRValue) -> None:
        if value in self.pending:
            self.materialize(value)
        elif value in self.views:
            operation = self.views[value]
            if operation.name == "tt.gather":
                self.materialize(operation.operands[0])
            for operand in operation.operands:
                self._materialize_sources(operand)

    def materialize_pending(self) -> None:
        """Materialize the pending values that are used later."""
        self.materialize(
            *(
                value
                for value in list(self.pending)
                if any(
                    not user.results or user.results[0] not in self.pending
                    for user in self.users[value]
                )
            )
        )
        self.pending.clear()
