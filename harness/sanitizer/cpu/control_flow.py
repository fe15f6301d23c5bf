"""A kernel's blocks, branches and loops, and the values that they carry.

A carried scalar is a stack slot, a carried tensor a scratch buffer. Example: `for` with a carried
tensor copies the initial value into the buffer, runs the body on it, and copies the yielded value.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

from harness.sanitizer.cpu.abi import LaunchField
from harness.sanitizer.cpu.arithmetic import Arithmetic
from harness.sanitizer.cpu.lane_values import LaneValues
from harness.sanitizer.ir import flow
from harness.sanitizer.ir.graph import (
    IRBlock,
    IROperation,
    IRRegion,
    IRValue,
    KernelGraph,
    SourceLocation,
)
from harness.sanitizer.llvm.number_formats import UnsupportedOnCpu, llvm_type, size_of
from harness.sanitizer.llvm.text import LlvmFunction
from harness.sanitizer.violations.kinds import ViolationKind

_MAX_ITERATIONS = 1 << 24  # limit of a loop without a bound: a longer one waits for another program


class ControlFlowLowering(LaneValues):
    """Lane values, with the control flow around them."""

    def __init__(self, graph: KernelGraph, arithmetic: Arithmetic) -> None:
        super().__init__(graph, arithmetic)
        self._block_arguments: dict[str, tuple[IRValue, ...]] = {}
        self._carried_slots: dict[IRValue, str] = {}  # slots of scalars that control flow carries
        self.block_lines: list[tuple[tuple[str, int], ...]] = []
        self.ran_flags = self.code.to_pointer(self.code.load_context(LaunchField.RAN_FLAGS))

    def lower_operation(self, operation: IROperation) -> None:
        raise NotImplementedError

    def emit_access(
        self,
        access: str,
        operation: IROperation,
        mask: IRValue | None,
        values: str,
        other: IRValue | None = None,
    ) -> str:
        raise NotImplementedError

    def mark_approximation(self, name: str) -> None:
        if not self.arithmetic.answers_approximations:
            raise UnsupportedOnCpu(f"{name}, whose bits depend on the GPU")
        self.approximations[name] = None

    def lower_function(self, region: IRRegion) -> None:
        self._lower_blocks(region, lambda operation: self.code.emit("ret i32 0"))

    def lower_blocks(self, region: IRRegion, emit_end: Callable[[IROperation], None]) -> None:
        """Lower a region inside of the kernel; the code after it follows each of its ends."""
        before, end = self._block_arguments, self.code.make_name("joined")

        def leave(operation: IROperation) -> None:
            emit_end(operation)
            self.code.jump(end)

        self._lower_blocks(region, leave)
        self.code.start_block(end)
        self._block_arguments = before

    def _lower_blocks(self, region: IRRegion, emit_end: Callable[[IROperation], None]) -> None:
        labels = {block.label: self.code.make_name("block") for block in region.blocks}
        self._block_arguments = {}
        for block in region.blocks[1:]:
            self._block_arguments[block.label] = block.arguments
            for argument in block.arguments:
                self._allocate_carried(argument)
        for number, block in enumerate(region.blocks):
            if number:
                self.code.start_block(labels[block.label])
                for argument in block.arguments:
                    self._load_carried(argument)
            with self._conditional_scope():
                self._lower_block(block)
                self._emit_terminator(block.operations[-1], labels, emit_end)

    def _emit_terminator(
        self,
        branch: IROperation,
        labels: dict[str, str],
        emit_end: Callable[[IROperation], None],
    ) -> None:
        """Emit the branch from one block of a function to the next."""
        if branch.name.endswith("return"):
            emit_end(branch)
        elif branch.name == "cf.br":
            self._pass_to_successor(branch, 0)
            self.code.jump(labels[branch.successors[0]])
        elif branch.name == "cf.cond_br":
            condition = self.scalars[branch.operands[0]]
            true, false = self.code.make_name("true"), self.code.make_name("false")
            self.code.emit(f"br i1 {condition}, label %{true}, label %{false}")
            for place, label in enumerate((true, false)):
                self.code.start_block(label)
                self._pass_to_successor(branch, place)
                self.code.jump(labels[branch.successors[place]])
        else:
            raise UnsupportedOnCpu(branch.name)

    def _pass_to_successor(self, branch: IROperation, successor: int) -> None:
        label, values = flow.list_branch_targets(branch)[successor]
        with self._conditional_scope():
            self._store_carried(self._block_arguments[label], values)

    @contextlib.contextmanager
    def _conditional_scope(self) -> Iterator[None]:
        """Emit code that may not run: a view materialized in it counts as such in it alone."""
        before = self.buffers.keys() & self.views.keys()
        yield
        for value in (self.buffers.keys() & self.views.keys()) - before:
            del self.buffers[value]
            self.overflows.buffers.pop(value, None)

    def _lower_body(
        self, block: IRBlock, targets: tuple[IRValue, ...], yielded: tuple[IRValue, ...]
    ) -> None:
        """Lower a block that hands on these values to what control flow carries."""
        with self._conditional_scope():
            self._lower_block(block)
            self._store_carried(targets, yielded)

    def _lower_block(self, block: IRBlock) -> None:
        self.code.store_element("i8", "1", self.ran_flags, len(self.block_lines))
        self.block_lines.append(tuple(sorted(set(_list_source_lines(block)))))
        for operation in block.operations:
            self.lower_operation(operation)
        self.materialize_pending()

    # Carried values

    def _allocate_carried(self, value: IRValue) -> None:
        if value.type.shape:
            self.buffers[value] = self.allocate_for_type(value.type)
            if value in self.address_integers:
                self.overflows.buffers[value] = self.allocate_scratch(4 * value.type.lanes)
        else:
            self._carried_slots[value] = self.code.alloca(llvm_type(value.type.element))
            if value in self.address_integers:
                self.overflows.slots[value] = self.code.alloca("i32")

    def _load_carried(self, value: IRValue) -> None:
        """Load a carried scalar at the start of its block."""
        if not value.type.shape:
            self.scalars[value] = self.code.load(
                llvm_type(value.type.element), self._carried_slots[value]
            )
            if value in self.address_integers:
                self.overflows.scalars[value] = self.code.load("i32", self.overflows.slots[value])

    def _store_carried(self, targets: tuple[IRValue, ...], values: tuple[IRValue, ...]) -> None:
        """Store all at once: a value may be the old value of another target (a swap)."""
        pairs = [(t, v) for t, v in zip(targets, values, strict=True) if t is not v]
        self.materialize(*(value for _, value in pairs))
        moves: list[Callable[[], None]] = []
        carried = {target for target, _ in pairs}
        for target, value in pairs:
            if not value.type.shape:
                moves.append(
                    partial(self._store_carried_scalar, target, *self.emit_lane(value, "0", {}))
                )
                continue
            size = target.type.lanes * size_of(target.type.element)
            source = self._copy_if_overwritten(self.buffers[value], size, value in carried)
            moves.append(partial(self.emit_copy, self.buffers[target], source, size))
            if target in self.address_integers:
                state = self.overflows.buffers.get(value)
                count = 4 * target.type.lanes
                if state is not None:
                    state = self._copy_if_overwritten(state, count, value in carried)
                moves.append(partial(self.overflows.emit_state_copy, target, state, count))
        for move in moves:
            move()

    def _copy_if_overwritten(self, buffer: str, size: int, overwritten: bool) -> str:
        if not overwritten:
            return buffer
        other = self.allocate_scratch(size)
        self.emit_copy(other, buffer, size)
        return other

    def _store_carried_scalar(self, target: IRValue, value: str, state: str | None) -> None:
        self.code.store(llvm_type(target.type.element), value, self._carried_slots[target])
        if target in self.address_integers:
            self.code.store("i32", state or "0", self.overflows.slots[target])

    def _alias_results(self, results: tuple[IRValue, ...], carried: tuple[IRValue, ...]) -> None:
        """Make a loop's carried values its results."""
        for result, value in zip(results, carried, strict=True):
            if result.type.shape:
                self.buffers[result] = self.buffers[value]
                if value in self.overflows.buffers:
                    self.overflows.buffers[result] = self.overflows.buffers[value]
            else:
                kind = llvm_type(result.type.element)
                self.scalars[result] = self.code.load(kind, self._carried_slots[value])
                if value in self.overflows.slots:
                    self.overflows.scalars[result] = self.code.load(
                        "i32", self.overflows.slots[value]
                    )

    def lower_for(self, operation: IROperation) -> None:
        code = self.code
        [body] = operation.regions
        induction, *carried = body.block.arguments
        kind = llvm_type(induction.type.element)
        start, end, step = (self.scalars[value] for value in operation.operands[:3])
        unsigned = operation.get_flag("unsignedCmp")
        wider = "zext" if unsigned else "sext"
        low, high, by = (
            bound if kind == "i64" else code.let(f"{wider} {kind} {bound} to i64")
            for bound in (start, end, step)
        )
        is_entered = code.let(f"icmp {'ult' if unsigned else 'slt'} i64 {low}, {high}")
        distance = code.let(f"sub i64 {code.let(f'sub i64 {high}, {low}')}, 1")
        iterations = code.let(f"add i64 {code.let(f'udiv i64 {distance}, {by}')}, 1")
        iterations = code.let(f"select i1 {is_entered}, i64 {iterations}, i64 0")
        for value in carried:
            self._allocate_carried(value)
        self._store_carried(tuple(carried), operation.operands[3:])
        with code.loop(iterations) as index:
            emit_interruption(code)
            offset = code.let(f"mul i64 {index}, {by}")
            induction_value = code.let(f"add i64 {low}, {offset}")
            self.scalars[induction] = (
                induction_value
                if kind == "i64"
                else code.let(f"trunc i64 {induction_value} to {kind}")
            )
            for value in carried:
                self._load_carried(value)
            self._lower_body(body.block, tuple(carried), flow.get_terminator(body).operands)
        self._alias_results(operation.results, tuple(carried))

    def lower_if(self, operation: IROperation) -> None:
        code = self.code
        condition = self.scalars[operation.operands[0]]
        for result in operation.results:
            self._allocate_carried(result)
        labels = [code.make_name("branch") for _ in range(2)]
        end = code.make_name("joined")
        code.emit(f"br i1 {condition}, label %{labels[0]}, label %{labels[1]}")
        for label, region in zip(labels, operation.regions, strict=True):
            code.start_block(label)
            if region.blocks:
                yielded = flow.get_terminator(region).operands
                self._lower_body(region.block, operation.results, yielded)
            code.jump(end)
        code.start_block(end)
        for result in operation.results:
            self._load_carried(result)

    def lower_while(self, operation: IROperation) -> None:
        code = self.code
        before, after = operation.regions
        site = self.add_site("wait", operation, "i1")
        for value in (*before.block.arguments, *after.block.arguments):
            self._allocate_carried(value)
        self._store_carried(before.block.arguments, operation.operands)
        iterations = code.alloca("i64", "0")
        head, body, end = (code.make_name("while") for _ in range(3))
        code.jump(head)
        code.start_block(head)
        emit_interruption(code)
        code.increment(iterations, "1")
        is_endless = code.let(f"icmp ugt i64 {code.load('i64', iterations)}, {_MAX_ITERATIONS}")
        with code.when(is_endless, exits=True):
            self.emit_report(ViolationKind.ENDLESS_WAIT, site)
            code.emit("ret i32 1")
        for value in before.block.arguments:
            self._load_carried(value)
        condition = flow.get_terminator(before)
        self._lower_body(before.block, after.block.arguments, condition.operands[1:])
        code.emit(f"br i1 {self.scalars[condition.operands[0]]}, label %{body}, label %{end}")
        code.start_block(body)
        for value in after.block.arguments:
            self._load_carried(value)
        yielded = flow.get_terminator(after).operands
        self._lower_body(after.block, before.block.arguments, yielded)
        code.jump(head)
        code.start_block(end)
        self._alias_results(operation.results, after.block.arguments)


def emit_interruption(code: LlvmFunction) -> None:
    """End the launch if a signal asks for it."""
    slot = code.element_pointer("%context", "i64", LaunchField.INTERRUPTED)
    stopped = code.let(f"load volatile i64, ptr {slot}")
    with code.when(code.is_nonzero(stopped), exits=True):
        code.emit("ret i32 1")


def _list_source_lines(block: IRBlock) -> Iterator[tuple[str, int]]:
    """Yield the source lines of a block's own operations, and of the calls that led to them."""
    for operation in block.operations:
        source: SourceLocation | None = operation.source
        while source is not None and source.line:
            yield source.file, source.line
            source = source.caller
