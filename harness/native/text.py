"""LLVM's assembly, written function by function: names, loops and branches kept in order."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class Function:
    """The text of one function while it is being written.

    Loops and branches are contexts; `let` names a result. Variables that live across blocks are
    stack slots: LLVM makes registers of them.
    """

    def __init__(self, head: str) -> None:
        self._head = head
        self._slots: list[str] = []
        self._lines: list[str] = []
        self._names = 0
        self.block = "entry"

    def __str__(self) -> str:
        return "\n".join([f"{self._head} {{", "entry:", *self._slots, *self._lines, "}", ""])

    def name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def do(self, text: str) -> None:
        self._lines.append("  " + text)

    def let(self, text: str) -> str:
        name = self.name("%t")
        self._lines.append(f"  {name} = {text}")
        return name

    def slot(self, kind: str, value: str | None = None) -> str:
        name = self.name("%s")
        self._slots.append(f"  {name} = alloca {kind}")
        if value is not None:
            self.do(f"store {kind} {value}, ptr {name}")
        return name

    def start(self, label: str) -> None:
        self._lines.append(f"{label}:")
        self.block = label

    def jump(self, label: str) -> None:
        self.do(f"br label %{label}")

    @contextlib.contextmanager
    def loop(self, count: int | str) -> Iterator[str]:
        """The body once for each index from 0; a count in words may be 0."""
        if count == 1:
            yield "0"
            return
        head, end = self.name("each"), self.name("done")
        index, following = self.name("%i"), self.name("%i")
        before = self.block
        if isinstance(count, str):
            none = self.let(f"icmp eq i64 {count}, 0")
            self.do(f"br i1 {none}, label %{end}, label %{head}")
        else:
            self.jump(head)
        self.start(head)
        place = len(self._lines)
        self._lines.append("")
        yield index
        after = self.block
        self._lines[place] = f"  {index} = phi i64 [ 0, %{before} ], [ {following}, %{after} ]"
        self.do(f"{following} = add nuw nsw i64 {index}, 1")
        last = self.let(f"icmp eq i64 {following}, {count}")
        self.do(f"br i1 {last}, label %{end}, label %{head}")
        self.start(end)

    @contextlib.contextmanager
    def when(self, condition: str, leaves: bool = False) -> Iterator[None]:
        """The body where the condition holds; one that leaves must end in a jump or a return."""
        then, end = self.name("then"), self.name("else")
        self.do(f"br i1 {condition}, label %{then}, label %{end}")
        self.start(then)
        yield
        if not leaves:
            self.jump(end)
        self.start(end)

    def at(self, base: str, kind: str, index: int | str) -> str:
        return self.let(f"getelementptr {kind}, ptr {base}, i64 {index}")

    def load(self, kind: str, pointer: str) -> str:
        return self.let(f"load {kind}, ptr {pointer}")

    def store(self, kind: str, value: str, pointer: str) -> None:
        self.do(f"store {kind} {value}, ptr {pointer}")

    def field(self, base: str, index: int) -> str:
        """A number in a table of 64-bit ones."""
        return self.load("i64", self.at(base, "i64", index))

    def pointer(self, number: str) -> str:
        return self.let(f"inttoptr i64 {number} to ptr")

    def add_to(self, slot: str, amount: str) -> None:
        self.store("i64", self.let(f"add i64 {self.load('i64', slot)}, {amount}"), slot)
