"""A kernel's blocks, branches and loops: what leads where, and what is carried there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

from harness.kernels import flow
from harness.kernels.graph import Block, Graph, Operation, Region, Source, Value
from harness.native.formats import Refused, llvm_type, size_of
from harness.native.lanes import Lanes
from harness.native.layout import Context, Fault

_MOST_TURNS = 1 << 24  # of a loop that waits for something


class Blocks(Lanes):
    """Lanes, with the code that decides which of them run."""

    def __init__(self, graph: Graph, exact: bool = False) -> None:
        super().__init__(graph, exact)
        self._slots: dict[Value, str] = {}  # of scalars that control flow carries
        self.lines: list[tuple[tuple[str, int], ...]] = []
        self.ran = self.code.pointer(self.code.field("%context", Context.RAN))

    def operation(self, operation: Operation) -> None:
        raise NotImplementedError

    def function(self, region: Region) -> None:
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
        self.code.store("i8", "1", self.code.at(self.ran, "i8", len(self.lines)))
        self.lines.append(tuple(sorted(set(_lines(block)))))
        for operation in block.operations:
            self.operation(operation)
        self.settle()

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

    def for_(self, operation: Operation) -> None:
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

    def if_(self, operation: Operation) -> None:
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

    def while_(self, operation: Operation) -> None:
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


def _lines(block: Block) -> Iterator[tuple[str, int]]:
    """The source lines of a block's own operations, and of the calls that led to them."""
    for operation in block.operations:
        source: Source | None = operation.source
        while source is not None and source.line:
            yield source.file, source.line
            source = source.caller
