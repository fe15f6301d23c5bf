"""A kernel's graph as LLVM's assembly: programs one by one, a tensor operation a loop over lanes.

Programs run one after the other, so branches, loops of any length, atomics and what one program
leaves for another need no masks and no care. Scalars are registers. Element-wise operations wait
until something needs their result, and then one loop computes all that the result is made of;
operations that only say where a lane comes from (splat, broadcast, reshape) are never computed.
An integer that is on its way into an address has a twin: 0, or the number of a wrap remembered.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from harness.kernels import flow
from harness.kernels.graph import Block, Graph, Kind, Operation, Region, Source, Value
from harness.native import accesses, elements, folds, formats, views
from harness.native.emitting import Known, Lane
from harness.native.formats import Refused, llvm_type, size_of, stored_type
from harness.native.layout import Context, Fault, Report
from harness.native.layout import Region as Region_
from harness.native.text import Function
from harness.native.wraps import Wraps

_MOST_TURNS = 1 << 24  # of a loop that waits for something
_IGNORED = frozenset(
    "tt.print llvm.intr.assume ttg.barrier gpu.barrier ttg.local_barrier tt.return".split()
)
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Site:
    """An operation that a report may name."""

    what: str  # "read", "write", "update", an operator, or an assertion's words
    element: str
    source: Source
    argument: int | None = None


@dataclass(frozen=True, slots=True)
class Lowered:
    text: str
    sites: tuple[Site, ...]
    scratch: int  # bytes
    kinds: tuple[Kind, ...]  # of the parameters
    reads: dict[int, tuple[int, ...]]  # of a parameter: how large its elements are read
    writes: dict[int, tuple[int, ...]]
    roams: bool  # some pointers have no known origin
    talks: bool  # programs tell each other something by atomics
    blocks: tuple[tuple[tuple[str, int], ...], ...]  # the source lines of each block


class Lowering:
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
        self._pending: dict[Value, Operation] = {}
        self._slots: dict[Value, str] = {}  # of scalars that control flow carries
        self._users: dict[Value, list[Operation]] = defaultdict(list)
        self._scratch = 0
        self._rooms: dict[str, str] = {}
        self._reads: dict[int, set[int]] = defaultdict(set)
        self._writes: dict[int, set[int]] = defaultdict(set)
        self._roams = False
        self._blocks: list[tuple[tuple[str, int], ...]] = []
        self.globals: list[str] = []
        for operation in graph.operations():
            for operand in operation.operands:
                self._users[operand].append(operation)

    def lowered(self) -> Lowered:
        code = self.code
        if self.graph.functions:
            raise Refused(f"calls that are not inlined: {', '.join(self.graph.functions)}")
        self.base = code.pointer(code.field("%context", Context.SCRATCH))
        arguments = code.pointer(code.field("%context", Context.ARGUMENTS))
        self.ran = code.pointer(code.field("%context", Context.RAN))
        self.regions = code.pointer(code.field("%context", Context.REGIONS))
        for place, parameter in enumerate(self.graph.parameters):
            if parameter.kind.shape:
                raise Refused(f"a parameter of type {parameter.kind}")
            self.scalars[parameter] = self._argument(arguments, place, parameter.kind)
        self._function(self.graph.body)
        talks = any(
            operation.name.startswith("tt.atomic") and self._users[operation.result]
            for operation in self.graph.operations()
        )
        return Lowered(
            self._module(),
            tuple(self.sites),
            self._scratch + _ALIGNMENT,
            tuple(parameter.kind for parameter in self.graph.parameters),
            {place: tuple(sorted(sizes)) for place, sizes in self._reads.items()},
            {place: tuple(sorted(sizes)) for place, sizes in self._writes.items()},
            self._roams,
            talks,
            tuple(self._blocks),
        )

    def _module(self) -> str:
        text = "\n".join([*self.globals, str(self.code), _launch()])
        needed = [formats.prelude(text), elements.declarations(text), accesses.declarations(text)]
        return "\n".join([*needed, text])

    def _argument(self, table: str, place: int, kind: Kind) -> str:
        number = self.code.field(table, place)
        target = llvm_type(kind.element)
        if target == "i64":
            return number
        if target[0] == "i":
            return self.code.let(f"trunc i64 {number} to {target}")
        if target == "double":
            return self.code.let(f"bitcast i64 {number} to double")
        bits = self.code.let(f"trunc i64 {number} to i{32 if target == 'float' else 16}")
        return self.code.let(f"bitcast i{32 if target == 'float' else 16} {bits} to {target}")

    # Sites, memory of its own

    def site(
        self, what: str, operation: Operation, element: str, argument: int | None = None
    ) -> int:
        self.sites.append(Site(what, element, operation.source, argument))
        return len(self.sites) - 1

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
        operation = self._pending[value]
        given = [self.lane(operand, index, known) for operand in operation.operands]
        return self._computed(operation, given)

    def _computed(self, operation: Operation, given: list[Lane]) -> Lane:
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
            users = self._users[value]
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
            self._pending.pop(value, None)

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
        operation = self._pending[value]
        for operand in operation.operands:
            self._prepare(operand, inside)
        inside[value] = None

    def _reach(self, value: Value) -> None:
        if value in self._pending:
            self.held(value)
        elif value in self.views:
            operation = self.views[value]
            if operation.name == "tt.gather":
                self.held(operation.operands[0])
            for operand in operation.operands:
                self._reach(operand)

    def _settle(self) -> None:
        """Compute what waits and is still to be used."""
        self.held(
            *(
                value
                for value in list(self._pending)
                if any(
                    not user.results or user.results[0] not in self._pending
                    for user in self._users[value]
                )
            )
        )
        self._pending.clear()

    # Blocks

    def _function(self, region: Region) -> None:
        labels = {block.label: self.code.name("block") for block in region.blocks}
        self._arguments: dict[str, tuple[Value, ...]] = {}
        for block in region.blocks[1:]:
            self._arguments[block.label] = block.arguments
            for argument in block.arguments:
                self._carry(argument)
        for number, block in enumerate(region.blocks):
            if number:
                self.code.start(labels[block.label])
                for argument in block.arguments:
                    self._arrive(argument)
            with self._scope():
                self._block(block)
                self._leave(block.operations[-1], labels)

    def _leave(self, last: Operation, labels: dict[str, str]) -> None:
        """From one block of a function to the next."""
        if last.name == "tt.return":
            self.code.do("ret i32 0")
        elif last.name == "cf.br":
            self._leave_for(last, 0)
            self.code.jump(labels[last.successors[0]])
        elif last.name == "cf.cond_br":
            condition = self.scalars[last.operands[0]]
            true, false = self.code.name("true"), self.code.name("false")
            self.code.do(f"br i1 {condition}, label %{true}, label %{false}")
            for place, label in enumerate((true, false)):
                self.code.start(label)
                self._leave_for(last, place)
                self.code.jump(labels[last.successors[place]])
        else:
            raise Refused(last.name)

    def _leave_for(self, branch: Operation, place: int) -> None:
        label, values = flow.successors(branch)[place]
        with self._scope():
            self._pass(self._arguments[label], values)

    @contextlib.contextmanager
    def _scope(self) -> Iterator[None]:
        """What may not run, or not be there any more: a view held inside is held inside alone."""
        before = self.buffers.keys() & self.views.keys()
        yield
        for value in (self.buffers.keys() & self.views.keys()) - before:
            del self.buffers[value]
            self.wraps.buffers.pop(value, None)

    def _block(self, block: Block) -> None:
        self.code.store("i8", "1", self.code.at(self.ran, "i8", len(self._blocks)))
        self._blocks.append(tuple(sorted(set(_lines(block)))))
        for operation in block.operations:
            self.operation(operation)
        self._settle()

    def operation(self, operation: Operation) -> None:
        name = operation.name
        if name in _IGNORED:
            return
        if name in views.TABLE and operation.result.kind.shape:
            for result in operation.results:
                self.views[result] = operation
        elif name in elements.TABLE:
            self._element_wise(operation)
        elif name in _SPECIAL:
            if operation.regions and name.startswith("scf."):
                self._settle()
            _SPECIAL[name](self, operation)
        elif not name.endswith(("yield", "cf.br", "cf.cond_br", "scf.condition")):
            raise Refused(name)

    def _element_wise(self, operation: Operation) -> None:
        result = operation.result
        if result.kind.shape:
            # What cannot be done is said now, whether or not anybody needs the result.
            llvm_type(result.kind.element)
            self._pending[result] = operation
            return
        given = [self.lane(operand, "0", {}) for operand in operation.operands]
        self.scalars[result], twin = self._computed(operation, given)
        if twin is not None:
            self.wraps.scalars[result] = twin

    # What control flow carries: a slot for a scalar, memory for a tensor

    def _carry(self, value: Value) -> None:
        if value.kind.shape:
            self.buffers[value] = self.room_for(value.kind)
            if value in self.addressing:
                self.wraps.buffers[value] = self.room(4 * value.kind.lanes)
        else:
            self._slots[value] = self.code.slot(llvm_type(value.kind.element))
            if value in self.addressing:
                self.wraps.slots[value] = self.code.slot("i32")

    def _arrive(self, value: Value) -> None:
        """What was passed is there to be used."""
        if not value.kind.shape:
            self.scalars[value] = self.code.load(llvm_type(value.kind.element), self._slots[value])
            if value in self.addressing:
                self.wraps.scalars[value] = self.code.load("i32", self.wraps.slots[value])

    def _pass(self, targets: tuple[Value, ...], values: tuple[Value, ...]) -> None:
        """All at once: what is passed may be what another target held."""
        pairs = [(t, v) for t, v in zip(targets, values, strict=True) if t is not v]
        self.held(*(value for _, value in pairs))
        moves: list[Callable[[], None]] = []
        carried = {target for target, _ in pairs}
        for target, value in pairs:
            if not value.kind.shape:
                moves.append(partial(self._pass_scalar, target, *self.lane(value, "0", {})))
                continue
            size = target.kind.lanes * size_of(target.kind.element)
            source = self._apart(self.buffers[value], size, value in carried)
            moves.append(partial(self.copy, self.buffers[target], source, size))
            if target in self.addressing:
                twin = self.wraps.buffers.get(value)
                count = 4 * target.kind.lanes
                if twin is not None:
                    twin = self._apart(twin, count, value in carried)
                moves.append(partial(self.wraps.pass_buffer, target, twin, count))
        for move in moves:
            move()

    def _apart(self, room: str, size: int, overwritten: bool) -> str:
        if not overwritten:
            return room
        other = self.room(size)
        self.copy(other, room, size)
        return other

    def _pass_scalar(self, target: Value, value: str, twin: str | None) -> None:
        self.code.store(llvm_type(target.kind.element), value, self._slots[target])
        if target in self.addressing:
            self.code.store("i32", twin or "0", self.wraps.slots[target])

    def _alias(self, results: tuple[Value, ...], carried: tuple[Value, ...]) -> None:
        """After a loop: what it carried is its result."""
        for result, value in zip(results, carried, strict=True):
            if result.kind.shape:
                self.buffers[result] = self.buffers[value]
                if value in self.wraps.buffers:
                    self.wraps.buffers[result] = self.wraps.buffers[value]
            else:
                kind = llvm_type(result.kind.element)
                self.scalars[result] = self.code.load(kind, self._slots[value])
                if value in self.wraps.slots:
                    self.wraps.scalars[result] = self.code.load("i32", self.wraps.slots[value])

    def _for(self, operation: Operation) -> None:
        code = self.code
        [body] = operation.regions
        induction, *carried = body.block.arguments
        kind = llvm_type(induction.kind.element)
        start, end, step = (self.scalars[value] for value in operation.operands[:3])
        unsigned = operation.flag("unsignedCmp")
        wider = "zext" if unsigned else "sext"
        if kind == "i64":
            low, high, by = start, end, step
        else:
            low, high, by = (code.let(f"{wider} {kind} {one} to i64") for one in (start, end, step))
        some = code.let(f"icmp {'ult' if unsigned else 'slt'} i64 {low}, {high}")
        room = code.let(f"sub i64 {code.let(f'sub i64 {high}, {low}')}, 1")
        turns = code.let(f"add i64 {code.let(f'udiv i64 {room}, {by}')}, 1")
        turns = code.let(f"select i1 {some}, i64 {turns}, i64 0")
        for value in carried:
            self._carry(value)
        self._pass(tuple(carried), operation.operands[3:])
        with code.loop(turns) as index, self._scope():
            offset = code.let(f"mul i64 {index}, {by}")
            at = code.let(f"add i64 {low}, {offset}")
            self.scalars[induction] = at if kind == "i64" else code.let(f"trunc i64 {at} to {kind}")
            for value in carried:
                self._arrive(value)
            self._block(body.block)
            self._pass(tuple(carried), flow.terminator(body).operands)
        self._alias(operation.results, tuple(carried))

    def _if(self, operation: Operation) -> None:
        code = self.code
        condition = self.scalars[operation.operands[0]]
        for result in operation.results:
            self._carry(result)
        labels = [code.name("branch") for _ in range(2)]
        end = code.name("joined")
        code.do(f"br i1 {condition}, label %{labels[0]}, label %{labels[1]}")
        for label, region in zip(labels, operation.regions, strict=True):
            code.start(label)
            if region.blocks:
                with self._scope():
                    self._block(region.block)
                    self._pass(operation.results, flow.terminator(region).operands)
            code.jump(end)
        code.start(end)
        for result in operation.results:
            self._arrive(result)

    def _while(self, operation: Operation) -> None:
        code = self.code
        before, after = operation.regions
        site = self.site("wait", operation, "i1")
        for value in (*before.block.arguments, *after.block.arguments):
            self._carry(value)
        self._pass(before.block.arguments, operation.operands)
        turns = code.slot("i64", "0")
        head, body, end = (code.name("while") for _ in range(3))
        code.jump(head)
        code.start(head)
        code.add_to(turns, "1")
        many = code.let(f"icmp ugt i64 {code.load('i64', turns)}, {_MOST_TURNS}")
        with code.when(many, leaves=True):
            self.report(Fault.WAITS, site)
        for value in before.block.arguments:
            self._arrive(value)
        condition = flow.terminator(before)
        with self._scope():
            self._block(before.block)
            self._pass(after.block.arguments, condition.operands[1:])
        code.do(f"br i1 {self.scalars[condition.operands[0]]}, label %{body}, label %{end}")
        code.start(body)
        for value in after.block.arguments:
            self._arrive(value)
        with self._scope():
            self._block(after.block)
            self._pass(before.block.arguments, flow.terminator(after).operands)
        code.jump(head)
        code.start(end)
        self._alias(operation.results, after.block.arguments)

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

    # Single operations

    def _constant(self, operation: Operation) -> None:
        result, text = operation.result, operation.attributes["value"]
        self.scalars[result] = formats.literal(text.split(":")[0], result.kind.element)

    def _poison(self, operation: Operation) -> None:
        zero = (
            "0.0"
            if llvm_type(operation.result.kind.element) in ("half", "float", "double")
            else "0"
        )
        self.scalars[operation.result] = zero

    def _program_id(self, operation: Operation) -> None:
        self.scalars[operation.result] = f"%{'xyz'[operation.number('axis')]}"

    def _num_programs(self, operation: Operation) -> None:
        side = self.code.field("%context", Context.GRID_X + operation.number("axis"))
        self.scalars[operation.result] = self.code.let(f"trunc i64 {side} to i32")

    def _unsplat(self, operation: Operation) -> None:
        [source] = operation.operands
        self.held(source)
        value, twin = self.lane(source, "0", {})
        self.scalars[operation.result] = value
        if twin is not None:
            self.wraps.scalars[operation.result] = twin

    def _assert(self, operation: Operation) -> None:
        [condition] = operation.operands
        message = operation.attributes.get("message", "").strip('"')
        site = self.site(message, operation, "i1")
        self.held(condition)
        with self.code.loop(max(1, condition.kind.lanes)) as index:
            holds, _ = self.lane(condition, index, {})
            with self.code.when(self.code.let(f"xor i1 {holds}, true"), leaves=True):
                self.report(Fault.ASSERTION, site)

    # Memory

    def _in_memory(self, value: Value | None) -> tuple[str, str]:
        """Where a value and its twin lie, as a call is given them."""
        if value is None:
            return "null", "null"
        if not value.kind.shape:
            room = self.room(8)
            self.store_lane(self.scalars[value], room, value.kind.element, "0")
            twin = self.wraps.scalars.get(value)
            if twin is None:
                return self.address(room), "null"
            other = self.room(4)
            self.store_lane(twin, other, "i32", "0")
            return self.address(room), self.address(other)
        twin = self.wraps.buffers.get(value)
        return self.address(self.buffers[value]), "null" if twin is None else self.address(twin)

    def access(
        self,
        verb: str,
        operation: Operation,
        mask: Value | None,
        values: str,
        other: Value | None = None,
    ) -> str:
        """Have an access checked, and done unless it is an update; the addresses it is at."""
        pointer = operation.operands[0]
        code, element = self.code, pointer.kind.pointee
        size = 8 if element.startswith("ptr<") else size_of(element)
        origin = self.origins.get(pointer)
        site = self.site(verb, operation, element, origin)
        if origin is None:
            self._roams = True
            region = "null"
        else:
            region = code.at(self.regions, f"[{len(Region_)} x i64]", origin)
            if verb != "write" and not operation.flag("isVolatile"):
                self._reads[origin].add(size)
            if verb != "read":
                self._writes[origin].add(size)
        addresses, wraps = self._in_memory(pointer)
        masked, _ = self._in_memory(mask)
        filler, _ = self._in_memory(other)
        wrong = code.let(
            f"call i32 @unfix_{verb}{size}(ptr %context, i64 {site}, ptr {region},"
            f" i64 {max(1, pointer.kind.lanes)}, ptr {addresses}, ptr {masked}, ptr {wraps},"
            f" ptr {values}, ptr {filler})"
        )
        with code.when(code.let(f"icmp ne i32 {wrong}, 0"), leaves=True):
            code.do("ret i32 1")
        return addresses

    def _load(self, operation: Operation) -> None:
        groups = operation.groups() or [operation.operands, (), ()]
        pointer, mask, other = ([*group, None][0] for group in groups)
        self.held(*(value for value in (pointer, mask, other) if value is not None))
        result = operation.result
        room = self.room_for(result.kind)
        self.access("read", operation, mask, self.address(room), other)
        self.made(result, room)

    def kept(self, base: str) -> str:
        """The room that an address in scratch was taken of."""
        return self._rooms[base]

    def made(self, result: Value, room: str) -> None:
        """A result lies in memory."""
        if result.kind.shape:
            self.buffers[result] = room
        else:
            self.scalars[result] = self.load_lane(room, result.kind.element, "0")

    def _store(self, operation: Operation) -> None:
        _, value, *rest = operation.operands
        mask = rest[0] if rest else None
        self.held(*operation.operands)
        self.access("write", operation, mask, self._in_memory(value)[0])


def _lines(block: Block) -> Iterator[tuple[str, int]]:
    """The source lines of a block's own operations, and of the calls that led to them."""
    for operation in block.operations:
        source: Source | None = operation.source
        while source is not None and source.line:
            yield source.file, source.line
            source = source.caller


_SPECIAL: dict[str, Callable[[Lowering, Operation], None]] = {
    "arith.constant": Lowering._constant,
    "ub.poison": Lowering._poison,
    "tt.get_program_id": Lowering._program_id,
    "tt.get_num_programs": Lowering._num_programs,
    "tt.unsplat": Lowering._unsplat,
    "tt.assert": Lowering._assert,
    "tt.load": Lowering._load,
    "tt.store": Lowering._store,
    "tt.atomic_rmw": folds.atomic,
    "tt.atomic_cas": folds.atomic,
    "tt.reduce": folds.reduce,
    "tt.scan": folds.scan,
    "tt.dot": folds.dot,
    "scf.for": Lowering._for,
    "scf.if": Lowering._if,
    "scf.while": Lowering._while,
}


def _launch() -> str:
    """All programs of a launch, the last axis of the grid first; it ends at the first report."""
    code = Function("define i32 @launch(ptr %context)")
    y, z = (code.field("%context", place) for place in (Context.GRID_Y, Context.GRID_Z))
    chosen = code.field("%context", Context.PROGRAMS)
    with code.loop(code.field("%context", Context.COUNT)) as index:
        code.store("i64", index, code.at("%context", "i64", Context.ORDINAL))
        code.store("i64", "0", code.at("%context", "i64", Context.WRAP_COUNT))
        rest = code.let(f"udiv i64 {index}, {z}")
        places = [
            code.slot("i64", code.let(text))
            for text in (f"udiv i64 {rest}, {y}", f"urem i64 {rest}, {y}", f"urem i64 {index}, {z}")
        ]
        with code.when(code.let(f"icmp ne i64 {chosen}, 0")):
            named = code.at(code.pointer(chosen), "[3 x i64]", index)
            for axis, place in enumerate(places):
                code.store("i64", code.field(named, axis), place)
        program = [code.load("i64", place) for place in places]
        given = ", ".join(f"i32 {code.let(f'trunc i64 {one} to i32')}" for one in program)
        wrong = code.let(f"call i32 @program(ptr %context, {given})")
        with code.when(code.let(f"icmp ne i32 {wrong}, 0"), leaves=True):
            report = code.pointer(code.field("%context", Context.REPORT))
            for field, one in zip((Report.X, Report.Y, Report.Z), program, strict=True):
                code.store("i64", one, code.at(report, "i64", field))
            code.do("ret i32 1")
    code.do("ret i32 0")
    return str(code)
