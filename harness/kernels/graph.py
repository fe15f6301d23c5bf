"""A kernel as data: operations, their operands, regions and source places.

Nothing here knows how Triton makes or prints its IR; `parsing` does. A graph can be held, printed,
pickled and walked, and what is built on it (an executor, an audit) needs nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from math import prod


@dataclass(frozen=True, slots=True)
class Kind:
    """The type of a value: an element such as `i32`, `f16` or `ptr<i32>`, and a tensor's shape."""

    element: str
    shape: tuple[int, ...] = ()

    @property
    def lanes(self) -> int:
        return prod(self.shape)

    @property
    def is_pointer(self) -> bool:
        return self.element.startswith("ptr<")

    @property
    def pointee(self) -> str:
        return self.element[4:-1].split(",")[0].strip()

    @property
    def is_integer(self) -> bool:
        return self.element[0] == "i" and self.element[1:].isdigit()

    @property
    def is_float(self) -> bool:
        return self.element.startswith(("f", "bf"))

    @property
    def bits(self) -> int:
        return bits_of(self.element)

    def of(self, element: str) -> Kind:
        return Kind(element, self.shape)

    def __str__(self) -> str:
        if not self.shape:
            return self.element
        return f"{'x'.join(map(str, self.shape))}x{self.element}"


@cache
def bits_of(element: str) -> int:
    if element.startswith("ptr<"):
        return 64
    digits = ""
    for letter in element.removeprefix("b").removeprefix("f").removeprefix("i"):
        if not letter.isdigit():
            break
        digits += letter
    return int(digits)


@dataclass(frozen=True, slots=True)
class Source:
    """A line of a kernel, and the line that called the function it is in."""

    file: str = "?"
    line: int = 0
    column: int = 0
    caller: Source | None = None

    @property
    def outermost(self) -> Source:
        return self if self.caller is None else self.caller.outermost

    def __str__(self) -> str:
        where = f"{self.file.rsplit('/', 1)[-1]}:{self.line}"
        return where if self.caller is None else f"{where} < {self.caller}"


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """What an operation makes, or a block is given. Each is itself and no other."""

    number: int
    kind: Kind
    name: str = ""

    def __str__(self) -> str:
        return f"%{self.number}" + (f".{self.name}" if self.name else "")


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    name: str  # with its dialect: "tt.load"
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    attributes: dict[str, str]  # as they are printed
    source: Source
    regions: tuple[Region, ...] = ()
    successors: tuple[str, ...] = ()

    @property
    def result(self) -> Value:
        return self.results[0]

    def number(self, attribute: str, default: int = 0) -> int:
        text = self.attributes.get(attribute)
        return default if text is None else int(text.split(":")[0])

    def numbers(self, attribute: str) -> tuple[int, ...]:
        """Of `array<i32: 1, 0>`."""
        text = self.attributes.get(attribute, "")
        _, _, listed = text.rstrip("> ").partition(":")
        return tuple(int(part) for part in listed.split(",") if part.strip())

    def flag(self, attribute: str) -> bool:
        return self.attributes.get(attribute, "false") in ("true", "unit")

    def groups(self) -> list[tuple[Value, ...]]:
        """The operands by the segments that the operation divides them into."""
        found, place = [], 0
        for size in self.numbers("operandSegmentSizes"):
            found.append(self.operands[place : place + size])
            place += size
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    label: str
    arguments: tuple[Value, ...]
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    blocks: tuple[Block, ...]

    @property
    def block(self) -> Block:
        return self.blocks[0]


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """One kernel with its constants: its parameters are the entry block's arguments."""

    name: str
    body: Region
    functions: dict[str, Region] = field(default_factory=dict)  # those that are not inlined
    attributes: dict[str, str] = field(default_factory=dict)  # of the kernel's function

    @property
    def parameters(self) -> tuple[Value, ...]:
        return self.body.block.arguments

    def operations(self) -> Iterator[Operation]:
        """Every operation, outer before inner."""
        for region in (self.body, *self.functions.values()):
            yield from operations(region)

    def __str__(self) -> str:
        parameters = ", ".join(f"{value}: {value.kind}" for value in self.parameters)
        lines = [f"{self.name}({parameters})"]
        lines += _printed(self.body, 1)
        for name, region in self.functions.items():
            lines += [name, *_printed(region, 1)]
        return "\n".join(lines)


def operations(region: Region) -> Iterator[Operation]:
    for block in region.blocks:
        for operation in block.operations:
            yield operation
            for inner in operation.regions:
                yield from operations(inner)


def _printed(region: Region, depth: int) -> Iterator[str]:
    indent = "  " * depth
    for index, block in enumerate(region.blocks):
        if index or (depth > 1 and block.arguments):
            given = ", ".join(f"{value}: {value.kind}" for value in block.arguments)
            yield f"{indent}^{block.label}({given})"
        for operation in block.operations:
            yield indent + _line(operation)
            for number, inner in enumerate(operation.regions):
                if number:
                    yield f"{indent}--"
                yield from _printed(inner, depth + 1)


def _line(operation: Operation) -> str:
    words = [operation.name, *map(str, operation.operands)]
    words += [f"{name}={text}" for name, text in operation.attributes.items()]
    words += [f"^{label}" for label in operation.successors]
    made = ", ".join(f"{value}: {value.kind}" for value in operation.results)
    return (f"{made} = " if made else "") + " ".join(words) + f"    @ {operation.source}"
