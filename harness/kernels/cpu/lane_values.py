"""The values of a kernel: scalars in registers, tensors in scratch memory or not computed yet.

Element-wise operations wait until something needs their result, and then one loop computes all that
the result is made of; operations that only say where a lane comes from (splat, broadcast, reshape)
are never computed.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from harness.kernels.cpu import elementwise_ops, view_ops
from harness.kernels.cpu.abi import LaunchField, ReportField, ViolationKind
from harness.kernels.cpu.llvm_text import LlvmFunction
from harness.kernels.cpu.number_formats import llvm_storage_type, size_of
from harness.kernels.cpu.overflow_tracking import LaneOverflowTracker
from harness.kernels.cpu.view_ops import LaneCache, LaneRegister, ViewedLane
from harness.kernels.ir import flow
from harness.kernels.ir.graph import IROperation, IRValue, KernelGraph, SourceLocation, ValueType

_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class OperationSite:
    """An operation that a report may name."""

    label: str  # "read", "write", "update", an operator, or an assertion's words
    element: str
    source: SourceLocation
    argument: int | None = None


class LaneValues:
    """One kernel's code so far, and where its values are."""

    def __init__(self, graph: KernelGraph, exact: bool = False) -> None:
        self.graph = graph
        self.exact = exact  # products of float32, where a GPU would take tf32
        self.code = LlvmFunction(
            "define internal i32 @program(ptr %context, i32 %x, i32 %y, i32 %z)"
        )
        self.pointer_origins = flow.find_pointer_origins(graph)
        self.address_integers = flow.analyze_addresses(graph)
        self.sites: list[OperationSite] = []
        self.overflows = LaneOverflowTracker(self)
        self.scalars: dict[IRValue, str] = {}
        self.buffers: dict[IRValue, str] = {}
        self.views: dict[IRValue, IROperation] = {}
        self.pending: dict[IRValue, IROperation] = {}
        self.users: dict[IRValue, list[IROperation]] = defaultdict(list)
        self._scratch_used = 0
        self._buffers_by_address: dict[str, str] = {}
        self.global_definitions: list[str] = []
        self.scratch_base = self.code.to_pointer(self.code.load_context(LaunchField.SCRATCH))
        for operation in graph.walk():
            for operand in operation.operands:
                self.users[operand].append(operation)

    # Sites, memory of its own

    def add_site(
        self, label: str, operation: IROperation, element: str, argument: int | None = None
    ) -> int:
        self.sites.append(OperationSite(label, element, operation.source, argument))
        return len(self.sites) - 1

    @property
    def scratch_size(self) -> int:
        """The bytes of all rooms, wherever they begin."""
        return self._scratch_used + _ALIGNMENT

    def allocate_scratch(self, size: int) -> str:
        """So many bytes of scratch."""
        place = self._scratch_used
        self._scratch_used += -(-size // _ALIGNMENT) * _ALIGNMENT
        # Named by its offset, and computed where it is used: it must be good in every block.
        return f"@{place}"

    def emit_buffer_address(self, buffer: str) -> str:
        if buffer[0] == "%":
            return buffer
        base = self.code.element_pointer(self.scratch_base, "i8", buffer[1:])
        self._buffers_by_address[base] = buffer
        return base

    def allocate_for_type(self, value_type: ValueType) -> str:
        return self.allocate_scratch(max(1, value_type.lanes) * size_of(value_type.element))

    def emit_lane_load(self, buffer: str, element: str, index: str) -> str:
        stored = llvm_storage_type(element)
        value = self.code.load_element(stored, self.emit_buffer_address(buffer), index)
        return value if element != "i1" else self.code.let(f"icmp ne i8 {value}, 0")

    def emit_lane_store(self, value: str, buffer: str, element: str, index: str) -> None:
        stored = llvm_storage_type(element)
        if element == "i1":
            value = self.code.let(f"zext i1 {value} to i8")
        self.code.store_element(stored, value, self.emit_buffer_address(buffer), index)

    def emit_copy(self, target: str, source: str, size: int) -> None:
        to, start = self.emit_buffer_address(target), self.emit_buffer_address(source)
        self.code.emit(
            f"call void @llvm.memcpy.p0.p0.i64(ptr {to}, ptr {start}, i64 {size}, i1 false)"
        )

    def find_buffer(self, address: str) -> str:
        """The room that an address in scratch was taken of."""
        return self._buffers_by_address[address]

    def set_result_buffer(self, result: IRValue, buffer: str) -> None:
        """A result lies in memory."""
        if result.type.shape:
            self.buffers[result] = buffer
        else:
            self.scalars[result] = self.emit_lane_load(buffer, result.type.element, "0")

    def emit_report(
        self, violation: ViolationKind, site: int, address: str = "0", other: str = "0"
    ) -> None:
        code = self.code
        table = code.to_pointer(code.load_context(LaunchField.REPORT))
        for place, value in (
            (ReportField.KIND, str(int(violation))),
            (ReportField.SITE, str(site)),
            (ReportField.ADDRESS, address),
            (ReportField.OTHER, other),
        ):
            code.store_element("i64", value, table, place)
        code.emit("ret i32 1")

    # Lanes

    def emit_lane(self, value: IRValue, index: str, lane_cache: LaneCache) -> LaneRegister:
        """One element of a value; inside of a loop each is computed once."""
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
            twin = self.overflows.buffers.get(value)
            loaded = self.emit_lane_load(self.buffers[value], value.type.element, index)
            return loaded, None if twin is None else self.emit_lane_load(twin, "i32", index)
        if value in self.views:
            operation = self.views[value]
            lane = ViewedLane(self, operation, value, index, lane_cache)
            return view_ops.VIEW_EMITTERS[operation.name](lane)
        operation = self.pending[value]
        given = [self.emit_lane(operand, index, lane_cache) for operand in operation.operands]
        return self.emit_elementwise(operation, given)

    def emit_elementwise(
        self, operation: IROperation, operands: list[LaneRegister]
    ) -> LaneRegister:
        emit = elementwise_ops.ELEMENT_EMITTERS[operation.name]
        value = emit(self.code, operation, [one for one, _ in operands])
        return value, self.overflows.emit_result_state(operation, value, operands)

    def materialize(self, *values: IRValue) -> None:
        """See to it that these tensors lie in scratch memory."""
        waiting: dict[int, list[IRValue]] = defaultdict(list)
        for value in values:
            if value.type.shape and value not in self.buffers:
                waiting[value.type.lanes].append(value)
        for lanes, targets in waiting.items():
            self._materialize_together(lanes, targets)

    def _materialize_together(self, lanes: int, targets: list[IRValue]) -> None:
        inside: dict[IRValue, None] = {}
        for target in targets:
            self._collect_fused_values(target, inside)
        for value in inside:
            users = self.users[value]
            if value not in targets and any(
                not user.results or user.results[0] not in inside for user in users
            ):
                targets.append(value)
        targets = [value for value in targets if value not in self.buffers]
        rooms = [(value, self.allocate_for_type(value.type)) for value in targets]
        twins = [
            (value, self.allocate_scratch(4 * lanes))
            for value in targets
            if value in self.address_integers
        ]
        bases = {room: self.emit_buffer_address(room) for _, room in (*rooms, *twins)}
        written = []
        with self.code.loop(lanes) as index:
            known: LaneCache = {}
            for value, room in rooms:
                self.emit_lane_store(
                    self.emit_lane(value, index, known)[0], bases[room], value.type.element, index
                )
            for value, room in twins:
                twin = self.emit_lane(value, index, known)[1]
                if twin is not None:
                    written.append((value, room))
                    self.emit_lane_store(twin, bases[room], "i32", index)
        self.buffers |= dict(rooms)
        self.overflows.buffers |= dict(written)
        for value in inside:
            self.pending.pop(value, None)

    def _collect_fused_values(self, value: IRValue, fused: dict[IRValue, None]) -> None:
        """What a loop computes, lane by lane; what it reads at other lanes is held before it."""
        if not value.type.shape or value in self.buffers or value in fused:
            return
        if value in self.views:
            operation = self.views[value]
            for operand in operation.operands:
                if operation.name in view_ops.LANE_PRESERVING:
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
        """Compute what waits and is still to be used."""
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
