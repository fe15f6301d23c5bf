"""A kernel as data: operations, their operands, regions and source lines.

A graph can be pickled and walked, without Triton: the back ends and the audit need nothing
else. `triton/mlir_parser` reads one from Triton's IR and `mlir_printer` writes it for Triton again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod


@dataclass(frozen=True, slots=True)
class ValueType:
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
    def bits(self) -> int:
        return get_bit_count(self.element)

    def with_element(self, element: str) -> ValueType:
        return ValueType(element, self.shape)

    def __str__(self) -> str:
        if not self.shape:
            return self.element
        return f"{'x'.join(map(str, self.shape))}x{self.element}"


@cache
def wrap_integer(number: int, bits: int, signed: bool) -> int:
    """Wrap an integer to the number that a register of so many bits holds."""
    number &= (1 << bits) - 1
    return number - (1 << bits) if signed and number >> (bits - 1) else number


@cache
def get_bit_count(element: str) -> int:
    if element.startswith("ptr<"):
        return 64
    digits = ""
    for letter in element.removeprefix("b").removeprefix("f").removeprefix("i"):
        if not letter.isdigit():
            break
        digits += letter
    return int(digits)


FileLine = tuple[str, int]  # a file's path and a line's number


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A line of a kernel, and the line that called the function it is in."""

    file: str = "?"
    line: int = 0
    column: int = 0
    caller: SourceLocation | None = None

    @property
    def outermost(self) -> SourceLocation:
        return self if self.caller is None else self.caller.outermost

    @property
    def chain(self) -> list[SourceLocation]:
        """This line and those of its callers, innermost first."""
        return [self, *(() if self.caller is None else self.caller.chain)]

    @property
    def line_key(self) -> FileLine:
        return self.file, self.line

    def __str__(self) -> str:
        where = f"{self.file.rsplit('/', 1)[-1]}:{self.line}"
        return where if self.caller is None else f"{where} < {self.caller}"


@dataclass(frozen=True, slots=True, eq=False)
class IRValue:
    """A result of an operation or an argument of a block, compared by identity."""

    number: int
    type: ValueType
    name: str = ""

    def __str__(self) -> str:
        return f"%{self.number}" + (f".{self.name}" if self.name else "")


@dataclass(frozen=True, slots=True, eq=False)
class IROperation:
    name: str  # name with its dialect: "tt.load"
    operands: tuple[IRValue, ...]
    results: tuple[IRValue, ...]
    attributes: dict[str, str]  # texts as MLIR prints them
    source: SourceLocation
    regions: tuple[IRRegion, ...] = ()
    successors: tuple[str, ...] = ()

    @property
    def result(self) -> IRValue:
        return self.results[0]

    def get_int(self, attribute: str, default: int = 0) -> int:
        text = self.attributes.get(attribute)
        return default if text is None else int(text.split(":")[0])

    def get_ints(self, attribute: str) -> tuple[int, ...]:
        """Return the integers of an attribute such as `array<i32: 1, 0>`."""
        text = self.attributes.get(attribute, "")
        _, _, listed = text.rstrip("> ").partition(":")
        return tuple(int(part) for part in listed.split(",") if part.strip())

    def get_flag(self, attribute: str) -> bool:
        return self.attributes.get(attribute, "false") in ("true", "unit")

    def split_operands(self) -> list[tuple[IRValue, ...]]:
        """Return the operands in the groups of `operandSegmentSizes`."""
        segments, start = [], 0
        for size in self.get_ints("operandSegmentSizes"):
            segments.append(self.operands[start : start + size])
            start += size
        return segments


@dataclass(frozen=True, slots=True, eq=False)
class IRBlock:
    label: str
    arguments: tuple[IRValue, ...]
    operations: tuple[IROperation, ...]


@dataclass(frozen=True, slots=True, eq=False)
class IRRegion:
    blocks: tuple[IRBlock, ...]

    @property
    def block(self) -> IRBlock:
        return self.blocks[0]


@dataclass(frozen=True, slots=True, eq=False)
class KernelGraph:
    """One kernel with its constants: its parameters are the entry block's arguments."""

    name: str
    body: IRRegion
    functions: dict[str, IRRegion] = field(default_factory=dict)  # functions that are not inlined
    attributes: dict[str, str] = field(default_factory=dict)  # attributes of the kernel's function

    @property
    def parameters(self) -> tuple[IRValue, ...]:
        return self.body.block.arguments

    def walk(self) -> Iterator[IROperation]:
        """Yield every operation, outer before inner."""
        for region in (self.body, *self.functions.values()):
            yield from walk_operations(region)


def map_operations(
    region: IRRegion, change: Callable[[IROperation], Iterable[IROperation]]
) -> IRRegion:
    """Return the region with other operations in the place of each, those inside of it first."""

    def map_operation(operation: IROperation) -> Iterable[IROperation]:
        if operation.regions:
            regions = tuple(map_operations(inner, change) for inner in operation.regions)
            operation = replace(operation, regions=regions)
        return change(operation)

    def map_block(block: IRBlock) -> IRBlock:
        operations = (new for operation in block.operations for new in map_operation(operation))
        return replace(block, operations=tuple(operations))

    return IRRegion(tuple(map(map_block, region.blocks)))


def walk_operations(region: IRRegion) -> Iterator[IROperation]:
    for block in region.blocks:
        for operation in block.operations:
            yield operation
            for inner in operation.regions:
                yield from walk_operations(inner)
