"""A kernel as it is read one way for one launch, and what its host gives it at a load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.audit.arguments import LAUNCHED, SOURCES, Parameter
from harness.audit.conditions import Wrap, Wraps
from harness.audit.expressions import Expression, evaluated, several, symbols
from harness.audit.host import Launch
from harness.audit.intervals import Range, exactly
from harness.audit.limits import Limits, Quantity
from harness.audit.ranges import HUGE, Ranges, World, divided_by_zero
from harness.audit.shape import Shape
from harness.kernels.graph import Graph, Operation, Value, bits_of

AXES = "xyz"
MOST = (2**31 - 1, 65535, 65535)
_LOADS = 400  # whose ranges are kept at a time


@dataclass(frozen=True, slots=True)
class Place:
    file: str
    line: int


class Case:
    """A kernel read one way, for one launch."""

    def __init__(
        self, graph: Graph, parameters: list[Parameter], launch: Launch | None, limits: Limits
    ) -> None:
        self.graph, self.launch, self.limits = graph, launch, limits
        self.reading = Shape(graph)
        if one := divided_by_zero(self.reading):
            raise ValueError(f"line {one.source.line} divides by zero")
        self.given = parameters
        self.runtime = [one for one in parameters if one.kind != "constexpr"]
        self.constants = {one.name: one for one in parameters if one.kind == "constexpr"}
        self.named = {one.name: one for one in parameters}
        self._compiled = {  # by a word that nobody says more of: what it is compiled with
            one.given.expression: one.value
            for one in self.constants.values()
            if one.given.kind == "unknown" and type(one.value) is int
        }
        self.programs = {
            axis: next(
                (
                    one.result.name
                    for one in graph.operations()
                    if one.name == "tt.get_program_id" and AXES[axis] in axis_of(one)
                ),
                "",
            )
            for axis in range(3)
        }
        self._ranges: dict[frozenset[tuple[str, int]], Ranges] = {}
        self.used = sorted(self._quantities())
        self.sizes = [name for name in self.used if limits.quantities[name].size]

    @property
    def is_as_launched(self) -> bool:
        return any(one.source == LAUNCHED for one in self.given)

    @property
    def said(self) -> tuple[str, ...]:
        """The constants that it is read with, and who says so."""
        return tuple(
            f"{one.name} = {one.value!r} ({SOURCES.get(one.source, one.source)})"
            for one in self.constants.values()
        )

    # The host's numbers

    def _quantities(self) -> set[str]:
        found: set[str] = set()
        for one in self.runtime:
            if one.is_pointer:
                held = self.limits.content(one.name, str(one.expression))
                if held and held[0]:
                    found.add(held[0].name)
                continue
            found |= self.quantities_of(one.expression, one.name)
        for axis in range(3):
            found |= self.quantities_of(self.side(axis), self.programs[axis])
        return found

    def quantities_of(self, expression: Expression, name: str) -> set[str]:
        many = several(expression)
        known = (self._symbol(one, name, many) for one in symbols(expression))
        return {one.name for one in known if one is not None}

    def _symbol(self, word: str, name: str, many: bool) -> Quantity | None:
        """`many`: the name is that of an expression in which there are others."""
        called = self.launch.called.get(word, "") if self.launch is not None else ""
        own = self.limits.quantity(word, called=called) if many else None
        return own or self.limits.quantity(word, *([name] if name else []), called=called)

    def side(self, axis: int) -> Expression:
        grid = self.launch.grid if self.launch is not None else None
        if grid is not None:
            return grid[axis] if axis < len(grid) else 1
        return self.programs[axis] or 1

    def value(self, expression: Expression, name: str, at: Mapping[str, int]) -> Range:
        unknown: set[str] = set()
        many = several(expression)

        def value_of(word: str) -> int:
            constant = self.constants.get(word.rpartition("META[")[2].strip("'\"]"))
            if constant is not None and isinstance(constant.value, int):
                return constant.value
            if word in self._compiled:
                return self._compiled[word]
            quantity = self._symbol(word, name, many)
            if quantity is None:
                unknown.add(word)
                return 1
            return at.get(quantity.name, quantity.largest)

        value = evaluated(expression, value_of)
        if unknown:
            why = frozenset(f"what {one} may be" for one in unknown)
            return Range(0, 2**31 - 1, why)
        return exactly(value)

    def world(self, at: Mapping[str, int], ranged: bool) -> World:
        parameters: dict[int, Range] = {}
        contents: dict[int, Range] = {}
        places = {value.name: place for place, value in enumerate(self.graph.parameters)}
        for order, one in enumerate(self.runtime):
            place = places.get(one.name, order)
            if one.is_pointer:
                most = self.held(one, at)
                if most is not None:
                    contents[place] = Range(0, most)
                continue
            if one.kind[0] != "i":
                continue
            value = self.value(one.expression, one.name, at)
            parameters[place] = (
                Range(min(1, value.high), value.high, value.why) if ranged else value
            )
        sides = []
        for axis in range(3):
            side = self.value(self.side(axis), self.programs[axis], at)
            high = min(max(0, side.high - 1), MOST[axis] - 1)
            sides.append(Range(0, high, side.why))
        return World(parameters, (sides[0], sides[1], sides[2]), contents, ranged)

    def number(self, one: Parameter, at: Mapping[str, int]) -> int:
        return self.value(one.expression, one.name, at).high

    def is_narrow(self, at: Mapping[str, int]) -> bool:
        """Whether Triton would read it otherwise there: it gives 64 bits to what takes them."""
        narrow = (one for one in self.runtime if one.kind == "i32")
        return any(self.number(one, at) >= 1 << 31 for one in narrow)

    def holds(self, one: Parameter) -> Quantity | None:
        """What the numbers of a tensor are."""
        known = self.limits.content(one.name, str(one.expression))
        return known[0] if known else None

    def held(self, one: Parameter, at: Mapping[str, int]) -> int | None:
        """The largest number that a tensor holds."""
        quantity = self.holds(one)
        return max(0, at[quantity.name] - 1) if quantity else None

    def largest(self) -> dict[str, int]:
        return {name: self.limits.quantities[name].largest for name in self.used}

    def usual(self) -> dict[str, int]:
        return {name: self.limits.quantities[name].usual for name in self.used}

    def wraps(self, at: Mapping[str, int], ranged: bool = False) -> list[Wrap]:
        return list(Wraps(Ranges(self.reading, self.world(at, ranged))).found(own=False))

    def ranges_at(self, at: Mapping[str, int]) -> Ranges:
        """One line after the other is asked at the same loads."""
        key = frozenset(at.items())
        if key not in self._ranges:
            if len(self._ranges) >= _LOADS:
                self._ranges.clear()
            self._ranges[key] = Ranges(self.reading, self.world(at, False))
        return self._ranges[key]

    def wraps_at(self, at: Mapping[str, int], place: Place, own: bool = False) -> Wrap | None:
        wraps = Wraps(self.ranges_at(at))
        return next((one for one in wraps.found((place.file, place.line), own) if one.known), None)

    def may_reach(self, at: Mapping[str, int], room: int) -> bool:
        """Whether an access may go so many bytes from where its tensor begins."""
        ranges = self.ranges_at(at)
        accesses = (access.operands[0] for access, _ in self.reading.accesses)
        return any(self._reach(ranges, one) >= room for one in accesses)

    def _reach(self, ranges: Ranges, pointer: Value) -> int:
        pointer = self.reading.root(pointer)
        maker = self.reading.makers.get(pointer)
        if maker is None or maker.name != "tt.addptr":
            return 0 if pointer in self.reading.places else HUGE
        base, offset = maker.operands
        far = ranges.get(offset)
        size = max(1, bits_of(pointer.kind.pointee) // 8)
        return self._reach(ranges, base) + max(abs(far.low), abs(far.high)) * size

    def leads(self, at: Mapping[str, int]) -> set[Place]:
        """Where something wraps that is made of nothing that has."""
        wraps = Wraps(Ranges(self.reading, self.world(at, True))).found()
        return {place_of(one.operation) for one in wraps}


def place_of(operation: Operation) -> Place:
    return Place(operation.source.file, operation.source.line)


def axis_of(operation: Operation) -> str:
    text = operation.attributes.get("axis", "0").split(":")[0].strip()
    return AXES[int(text)] if text.isdigit() else text
