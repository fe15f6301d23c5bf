"""The values of a kernel: scalars in registers, tensors in scratch memory or not computed yet.

Element-wise operations wait until something needs their result, and then one loop computes all that
the result is made of; operations that only say where a lane comes from (splat, broadcast, reshape)
are never computed.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from harness.kernels import flow
from harness.kernels.graph import Graph, Kind, Operation, Source, Value
from harness.native import elements, views
from harness.native.emitting import Known, Lane
from harness.native.formats import size_of, stored_type
from harness.native.layout import Context, Fault, Report
from harness.native.text import Function
from harness.native.wraps import Wraps

_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Site:
    """An operation that a report may name."""

    what: str  # "read", "write", "update", an operator, or an assertion's words
    element: str
    source: Source
    argument: int | None = None


class Lanes:
    """One kernel's code so far, and where its values are."""

    def __init__(self, graph: Graph, exact: bool = False) -> None:
        self.graph = graph
        self.exact = exact  # products of float32, where a GPU would take tf32
        self.code = Function("define internal i32 @program(ptr %context, i32 %x, i32 %y, i32 %z)")
        self.origins = flow.origins(graph)
        self.addressing = flow.addressing(graph)
        self.sites: list[Site] = []
        self.wraps = Wraps(self)
        self.scalars: dict[Value, str] = {}
        self.buffers: dict[Value, str] = {}
        self.views: dict[Value, Operation] = {}
        self.pending: dict[Value, Operation] = {}
        self.users: dict[Value, list[Operation]] = defaultdict(list)
        self._scratch = 0
        self._rooms: dict[str, str] = {}
        self.globals: list[str] = []
        self.base = self.code.pointer(self.code.field("%context", Context.SCRATCH))
        for operation in graph.operations():
            for operand in operation.operands:
                self.users[operand].append(operation)

    # Sites, memory of its own

    def site(
        self, what: str, operation: Operation, element: str, argument: int | None = None
    ) -> int:
        self.sites.append(Site(what, element, operation.source, argument))
        return len(self.sites) - 1

    @property
    def scratch(self) -> int:
        """The bytes of all rooms, wherever they begin."""
        return self._scratch + _ALIGNMENT

    def room(self, size: int) -> str:
        """So many bytes of scratch."""
        place = self._scratch
        self._scratch += -(-size // _ALIGNMENT) * _ALIGNMENT
        # Named by its offset, and computed where it is used: it must be good in every block.
        return f"@{place}"

    def address(self, room: str) -> str:
        if room[0] == "%":
            return room
        base = self.code.at(self.base, "i8", room[1:])
        self._rooms[base] = room
        return base

    def room_for(self, kind: Kind) -> str:
        return self.room(max(1, kind.lanes) * size_of(kind.element))

    def load_lane(self, room: str, element: str, index: str) -> str:
        stored = stored_type(element)
        value = self.code.load(stored, self.code.at(self.address(room), stored, index))
        return value if element != "i1" else self.code.let(f"icmp ne i8 {value}, 0")

    def store_lane(self, value: str, room: str, element: str, index: str) -> None:
        stored = stored_type(element)
        if element == "i1":
            value = self.code.let(f"zext i1 {value} to i8")
        self.code.store(stored, value, self.code.at(self.address(room), stored, index))

    def copy(self, target: str, source: str, size: int) -> None:
        to, start = self.address(target), self.address(source)
        self.code.do(
            f"call void @llvm.memcpy.p0.p0.i64(ptr {to}, ptr {start}, i64 {size}, i1 false)"
        )

    def kept(self, base: str) -> str:
        """The room that an address in scratch was taken of."""
        return self._rooms[base]

    def made(self, result: Value, room: str) -> None:
        """A result lies in memory."""
        if result.kind.shape:
            self.buffers[result] = room
        else:
            self.scalars[result] = self.load_lane(room, result.kind.element, "0")

    def report(self, fault: Fault, site: int, address: str = "0", other: str = "0") -> None:
        code = self.code
        table = code.pointer(code.field("%context", Context.REPORT))
        for place, value in (
            (Report.KIND, str(int(fault))),
            (Report.SITE, str(site)),
            (Report.ADDRESS, address),
            (Report.OTHER, other),
        ):
            code.store("i64", value, code.at(table, "i64", place))
        code.do("ret i32 1")

    # Lanes

    def lane(self, value: Value, index: str, known: Known) -> Lane:
        """One element of a value; inside of a loop each is computed once."""
        if not value.kind.shape:
            return self.scalars[value], self.wraps.scalars.get(value)
        key = (value, index)
        if key not in known:
            known[key] = self._lane(value, index, known)
        return known[key]

    def _lane(self, value: Value, index: str, known: Known) -> Lane:
        if value in self.buffers:
            twin = self.wraps.buffers.get(value)
            loaded = self.load_lane(self.buffers[value], value.kind.element, index)
            return loaded, None if twin is None else self.load_lane(twin, "i32", index)
        if value in self.views:
            operation = self.views[value]
            return views.TABLE[operation.name](self, operation, value, index, known)
        operation = self.pending[value]
        given = [self.lane(operand, index, known) for operand in operation.operands]
        return self.computed(operation, given)

    def computed(self, operation: Operation, given: list[Lane]) -> Lane:
        emit = elements.TABLE[operation.name]
        value = emit(self.code, operation, [one for one, _ in given])
        return value, self.wraps.twin(operation, value, given)

    def held(self, *values: Value) -> None:
        """See to it that these tensors lie in scratch memory."""
        waiting: dict[int, list[Value]] = defaultdict(list)
        for value in values:
            if value.kind.shape and value not in self.buffers:
                waiting[value.kind.lanes].append(value)
        for lanes, targets in waiting.items():
            self._hold(lanes, targets)

    def _hold(self, lanes: int, targets: list[Value]) -> None:
        inside: dict[Value, None] = {}
        for target in targets:
            self._prepare(target, inside)
        for value in inside:
            users = self.users[value]
            if value not in targets and any(
                not user.results or user.results[0] not in inside for user in users
            ):
                targets.append(value)
        targets = [value for value in targets if value not in self.buffers]
        rooms = [(value, self.room_for(value.kind)) for value in targets]
        twins = [(value, self.room(4 * lanes)) for value in targets if value in self.addressing]
        bases = {room: self.address(room) for _, room in (*rooms, *twins)}
        written = []
        with self.code.loop(lanes) as index:
            known: Known = {}
            for value, room in rooms:
                self.store_lane(
                    self.lane(value, index, known)[0], bases[room], value.kind.element, index
                )
            for value, room in twins:
                twin = self.lane(value, index, known)[1]
                if twin is not None:
                    written.append((value, room))
                    self.store_lane(twin, bases[room], "i32", index)
        self.buffers |= dict(rooms)
        self.wraps.buffers |= dict(written)
        for value in inside:
            self.pending.pop(value, None)

    def _prepare(self, value: Value, inside: dict[Value, None]) -> None:
        """What a loop computes, lane by lane; what it reads at other lanes is held before it."""
        if not value.kind.shape or value in self.buffers or value in inside:
            return
        if value in self.views:
            operation = self.views[value]
            for operand in operation.operands:
                if operation.name in views.IN_PLACE:
                    self._prepare(operand, inside)
                else:
                    self._reach(operand)
            return
        operation = self.pending[value]
        for operand in operation.operands:
            self._prepare(operand, inside)
        inside[value] = None

    def _reach(self, value: Value) -> None:
        if value in self.pending:
            self.held(value)
        elif value in self.views:
            operation = self.views[value]
            if operation.name == "tt.gather":
                self.held(operation.operands[0])
            for operand in operation.operands:
                self._reach(operand)

    def settle(self) -> None:
        """Compute what waits and is still to be used."""
        self.held(
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
