"""LLVM's assembly, written function by function, with names, loops and branches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator


class LlvmFunction:
    """The text of one function while it is being written.

    Loops and branches are contexts; `let` names a result. Variables that live across blocks are
    stack slots: LLVM makes registers of them.
    """

    def __init__(self, signature: str) -> None:
        self._signature = signature
        self._allocas: list[str] = []
        self._lines: list[str] = []
        self._name_count = 0
        self.current_block = "entry"

    def __str__(self) -> str:
        return "\n".join([f"{self._signature} {{", "entry:", *self._allocas, *self._lines, "}", ""])

    def make_name(self, prefix: str) -> str:
        self._name_count += 1
        return f"{prefix}{self._name_count}"

    def emit(self, text: str) -> None:
        self._lines.append("  " + text)

    def let(self, text: str) -> str:
        name = self.make_name("%t")
        self._lines.append(f"  {name} = {text}")
        return name

    def let_steps(self, steps: Iterable[str], operands: Iterable[str]) -> str:
        """Emit steps with `{0}` for the first operand and `{v0}` for the first step's result."""
        results: list[str] = []
        for step in steps:
            names = {f"v{number}": result for number, result in enumerate(results)}
            results.append(self.let(step.format(*operands, **names)))
        return results[-1]

    def alloca(self, kind: str, value: str | None = None) -> str:
        name = self.make_name("%s")
        self._allocas.append(f"  {name} = alloca {kind}")
        if value is not None:
            self.emit(f"store {kind} {value}, ptr {name}")
        return name

    def start_block(self, label: str) -> None:
        self._lines.append(f"{label}:")
        self.current_block = label

    def jump(self, label: str) -> None:
        self.emit(f"br label %{label}")

    @contextlib.contextmanager
    def loop(self, count: int | str) -> Iterator[str]:
        """Emit the body for each index from 0; a count given as text may be 0."""
        if count == 1:
            yield "0"
            return
        head, end = self.make_name("each"), self.make_name("done")
        index, following = self.make_name("%i"), self.make_name("%i")
        before = self.current_block
        if isinstance(count, str):
            none = self.let(f"icmp eq i64 {count}, 0")
            self.emit(f"br i1 {none}, label %{end}, label %{head}")
        else:
            self.jump(head)
        self.start_block(head)
        place = len(self._lines)
        self._lines.append("")
        yield index
        after = self.current_block
        self._lines[place] = f"  {index} = phi i64 [ 0, %{before} ], [ {following}, %{after} ]"
        self.emit(f"{following} = add nuw nsw i64 {index}, 1")
        last = self.let(f"icmp eq i64 {following}, {count}")
        self.emit(f"br i1 {last}, label %{end}, label %{head}")
        self.start_block(end)

    @contextlib.contextmanager
    def when(self, condition: str, exits: bool = False) -> Iterator[None]:
        """Emit the body where the condition holds; with `exits` it ends in a jump or a return."""
        then, end = self.make_name("then"), self.make_name("else")
        self.emit(f"br i1 {condition}, label %{then}, label %{end}")
        self.start_block(then)
        yield
        if not exits:
            self.jump(end)
        self.start_block(end)

    def element_pointer(self, base: str, kind: str, index: int | str) -> str:
        return self.let(f"getelementptr {kind}, ptr {base}, i64 {index}")

    def load(self, kind: str, pointer: str) -> str:
        return self.let(f"load {kind}, ptr {pointer}")

    def store(self, kind: str, value: str, pointer: str) -> None:
        self.emit(f"store {kind} {value}, ptr {pointer}")

    def load_element(self, kind: str, base: str, index: int | str) -> str:
        return self.load(kind, self.element_pointer(base, kind, index))

    def store_element(self, kind: str, value: str, base: str, index: int | str) -> None:
        self.store(kind, value, self.element_pointer(base, kind, index))

    def load_field(self, base: str, index: int | str) -> str:
        """Load a number of a table of 64-bit numbers."""
        return self.load_element("i64", base, index)

    def load_context(self, field: int) -> str:
        """Load a field of the launch's table (`abi.LaunchField`)."""
        return self.load_field("%context", field)

    def to_pointer(self, number: str) -> str:
        return self.let(f"inttoptr i64 {number} to ptr")

    def increment(self, slot: str, amount: str) -> None:
        self.store("i64", self.let(f"add i64 {self.load('i64', slot)}, {amount}"), slot)

    # Addresses, conditions, and memory as bytes

    def subtract(self, left: str, right: str | int) -> str:
        return self.let(f"sub i64 {left}, {right}")

    def clamp_to_zero(self, number: str) -> str:
        return self.let(f"call i64 @llvm.smax.i64(i64 {number}, i64 0)")

    def both(self, first: str, *others: str) -> str:
        """Return whether all conditions hold."""
        for other in others:
            first = self.let(f"and i1 {first}, {other}")
        return first

    def negate(self, condition: str) -> str:
        return self.let(f"xor i1 {condition}, true")

    def is_at_least(self, left: str, right: str) -> str:
        """Compare without signs."""
        return self.let(f"icmp uge i64 {left}, {right}")

    def is_equal(self, left: str, right: str | int) -> str:
        return self.let(f"icmp eq i64 {left}, {right}")

    def is_nonzero(self, value: str) -> str:
        return self.let(f"icmp ne i64 {value}, 0")

    def copy_bytes(self, target: str, source: str, size: int | str) -> None:
        operands = f"ptr {target}, ptr {source}, i64 {size}, i1 false"
        self.emit(f"call void @llvm.memcpy.p0.p0.i64({operands})")

    def fill_bytes(self, target: str, byte: int, size: int | str) -> None:
        self.emit(f"call void @llvm.memset.p0.i64(ptr {target}, i8 {byte}, i64 {size}, i1 false)")
