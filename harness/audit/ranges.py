"""Ranges of a kernel's integers, from its parameters to its addresses.

Every integer of the graph gets the range of its true value, as if no type were too narrow. Where
that is more than its type holds, the operation wraps. Program numbers, lanes and what memory holds
are ranges; the host's numbers are ranges as well when something is to be proven for all launches,
and single numbers when one launch is looked for that wraps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from harness.audit.intervals import BINARY, Range, exactly, union
from harness.audit.shape import SAME, Shape
from harness.kernels.flow import terminator
from harness.kernels.graph import Operation, Region, Value

HUGE = 1 << 62
_DIVISIONS = ("arith.divsi", "arith.divui", "arith.remsi", "arith.remui")


def span_of(value: Value, signed: bool = True) -> tuple[int, int]:
    bits = max(1, value.kind.bits)
    if bits == 1:
        return 0, 1
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)


@dataclass(slots=True)
class World:
    """What a launch gives: a range for each parameter that is a number, programs, contents."""

    parameters: dict[int, Range] = field(default_factory=dict)
    programs: tuple[Range, Range, Range] = (exactly(0),) * 3
    contents: dict[int, Range] = field(default_factory=dict)
    every: bool = False  # of all launches, and not one


class Ranges:
    """The ranges of one graph in one world; each is made when it is first asked for."""

    def __init__(self, reading: Shape, world: World) -> None:
        self.reading, self.world = reading, world
        self._of: dict[Value, Range] = {}

    def get(self, value: Value) -> Range:
        found = self._of.get(value)
        if found is None:
            # Whoever comes back here on the way, round a loop, knows nothing yet.
            self._of[value] = self._anything(value, "a number that a loop carries")
            found = self._of[value] = self._new(value)
        return found

    def _new(self, value: Value) -> Range:
        place = self.reading.places.get(value)
        if place is not None:
            known = self.world.parameters.get(place)
            return known or self._anything(value, f"what {value.name or 'an argument'} may be")
        maker = self.reading.makers.get(value)
        if maker is None:
            return self._argument(value)
        if maker.name == "scf.for":
            carried = maker.regions[0].block.arguments[1:]
            number = maker.results.index(value)
            given = terminator(maker.regions[0]).operands[number]
            return self.get(maker.operands[3 + number]).joined(
                self.get(given) if given is not carried[number] else self.get(carried[number])
            )
        if maker.name == "scf.if":
            number = maker.results.index(value)
            regions = [region for region in maker.regions if region.blocks]
            return union([self.get(terminator(one).operands[number]) for one in regions])
        if maker.name == "scf.while":
            number = maker.results.index(value)
            return self.get(terminator(maker.regions[0]).operands[1 + number])
        if maker.name in ("tt.reduce", "tt.scan"):
            return self._folded(maker, value)
        return self.made(maker, value, self.get)

    def _argument(self, value: Value) -> Range:
        """Of a block: what a loop counts or carries, what a fold is given."""
        owner = self.reading.owners.get(value)
        if owner is None:
            return self._anything(value, "a jump")
        operation, region, number = owner
        if operation.name == "scf.for":
            lower, upper, step = (self.get(one) for one in operation.operands[:3])
            if not number:
                last = max(lower.low, upper.high - 1)
                return Range(lower.low, last, lower.why | upper.why)
            turns = max(0, -(-(upper.high - lower.low) // max(1, step.low)))
            init = self.get(operation.operands[2 + number])
            given = terminator(operation.regions[0]).operands[number - 1]
            return self._grown(value, init, given, turns, upper.why)
        if operation.name == "scf.while":
            before = operation.regions[0]
            if region:
                return self.get(terminator(before).operands[1 + number])
            found = self._counted(before, value, operation.operands[number])
            return found or self._anything(value, "a loop without a count")
        if operation.name in ("tt.reduce", "tt.scan"):
            return self.get(operation.operands[number % len(operation.operands)])
        return self._anything(value, "a jump")

    def _counted(self, before: Region, value: Value, init: Value) -> Range | None:
        """A counter that a `while` holds below something."""
        condition = self.reading.makers.get(terminator(before).operands[0])
        if condition is None or condition.name != "arith.cmpi":
            return None
        left, right = condition.operands
        if left is not value or right in before.block.arguments:
            return None
        low, high = self.get(init), self.get(right)
        return Range(min(low.low, 0), max(low.high, high.high), high.why | low.why)

    def _grown(
        self, value: Value, init: Range, given: Value, turns: int, why: frozenset[str]
    ) -> Range:
        """What a loop carries: where it started, and what each turn adds."""
        added = self._added(value, given)
        if added is None:
            if value in self.reading.cone(given):
                return self._anything(value, "a number that a loop carries")
            return init.joined(self.get(given))  # made anew each turn
        if not added.low and not added.high:
            return init
        return Range(
            init.low + turns * min(0, added.low),
            init.high + turns * max(0, added.high),
            init.why | added.why | why,
        )

    def _added(self, value: Value, given: Value) -> Range | None:
        maker = self.reading.makers.get(given)
        if given is value:
            return exactly(0)
        if maker is None or value not in self.reading.cone(given):
            return None
        if maker.name in ("arith.addi", "arith.subi"):
            left, right = maker.operands
            inner, other = self._added(value, left), right
            if inner is None and maker.name == "arith.addi":
                inner, other = self._added(value, right), left
            if inner is None or value in self.reading.cone(other):
                return None
            step = self.get(other)
            if maker.name == "arith.subi":
                step = Range(-step.high, -step.low, step.why)
            return Range(inner.low + step.low, inner.high + step.high, inner.why | step.why)
        if maker.name == "arith.select":
            ways = [self._added(value, one) for one in maker.operands[1:]]
        elif maker.name == "scf.if":
            place = maker.results.index(given)
            ways = [
                self._added(value, terminator(region).operands[place])
                for region in maker.regions
                if region.blocks
            ]
        else:
            return None
        known = [one for one in ways if one is not None]
        return union(known) if len(known) == len(ways) else None

    def _folded(self, operation: Operation, result: Value) -> Range:
        number = operation.results.index(result)
        inner = self.reading.makers.get(terminator(operation.regions[0]).operands[number])
        given = self.get(operation.operands[number])
        if inner is not None and inner.name == "arith.addi":
            many = max(1, operation.operands[number].kind.lanes // max(1, result.kind.lanes))
            if operation.name == "tt.scan":
                many = max(operation.operands[number].kind.shape)
            return Range(
                min(given.low, given.low * many), max(given.high, given.high * many), given.why
            )
        if inner is not None and inner.name in ("arith.muli", "arith.xori"):
            return self._anything(result, "a product of lanes")
        return given

    # One value

    def _anything(self, value: Value, why: str) -> Range:
        low, high = span_of(value) if value.kind.is_integer else (-HUGE, HUGE)
        return Range(low, high, frozenset({why}))

    def made(self, operation: Operation, result: Value, get: Callable[[Value], Range]) -> Range:
        """The true range of a result, then what its type leaves of it."""
        true = self.true(operation, result, get)
        low, high = span_of(result)
        if operation.name == "arith.extui" or not self.reading.addressing.signed.get(result, True):
            high = max(high, span_of(result, False)[1])
        if low <= true.low and true.high <= high:
            return true
        if true.low > high or true.high < low:
            return Range(low, high, true.why)
        return Range(max(low, true.low), min(high, true.high), true.why)

    def true(self, operation: Operation, result: Value, get: Callable[[Value], Range]) -> Range:
        name = operation.name
        if name in SAME:
            return get(operation.operands[0])
        if name == "arith.constant":
            return constant(operation, result)
        if name == "tt.get_program_id":
            return self.world.programs[_axis(operation)]
        if name == "tt.get_num_programs":
            side = self.world.programs[_axis(operation)]
            return Range(side.high + 1, side.high + 1, side.why)
        if name == "tt.make_range":
            return Range(
                int(operation.attributes["start"].split()[0]),
                int(operation.attributes["end"].split()[0]) - 1,
            )
        if name in ("tt.load", "tt.atomic_rmw", "tt.atomic_cas"):
            return self._held(operation, result)
        if name in ("tt.gather", "tt.split", "arith.trunci"):
            return get(operation.operands[0])
        if name in ("tt.join", "tt.cat"):
            return union([get(one) for one in operation.operands])
        if name == "arith.select":
            return get(operation.operands[1]).joined(get(operation.operands[2]))
        if name in ("arith.cmpi", "arith.cmpf"):
            return Range(0, 1)
        if name in BINARY and len(operation.operands) == 2:
            left, right = (get(one) for one in operation.operands)
            found = BINARY[name](left, right)
            if found is not None:
                why = left.why | right.why
                if name in (
                    "arith.remsi",
                    "arith.remui",
                    "arith.minsi",
                    "arith.minui",
                    "arith.andi",
                ):
                    why = frozenset() if not right.why or not left.why else why
                    if name == "arith.minsi" and (left.why and left.low < right.low):
                        found = (min(0, right.low), found[1])
                return Range(found[0], found[1], why)
        if result.kind.bits == 1:
            return Range(0, 1)
        return self._anything(result, name.partition(".")[2])

    def _held(self, operation: Operation, result: Value) -> Range:
        """What memory holds."""
        if result.kind.bits <= 1:
            return Range(0, 1)
        place = self.reading.origins.get(operation.operands[0])
        if place is not None and place in self.world.contents:
            known = self.world.contents[place]
            low, high = span_of(result)
            return Range(max(low, known.low), min(high, known.high), known.why)
        name = "memory"
        if place is not None:
            name = self.reading.graph.parameters[place].name or name
        return self._anything(result, f"what {name} holds")


def _axis(operation: Operation) -> int:
    text = operation.attributes.get("axis", "0").split(":")[0].strip()
    return {"x": 0, "y": 1, "z": 2}.get(text, int(text) if text.isdigit() else 0)


def constant(operation: Operation, result: Value) -> Range:
    text = operation.attributes.get("value", "0").removeprefix("dense<").split(":")[0].strip("> ")
    if text in ("true", "false"):
        return exactly(int(text == "true"))
    try:
        return exactly(int(text, 0))
    except ValueError:
        low, high = span_of(result)
        return Range(low, high)


def divided_by_zero(reading: Shape) -> Operation | None:
    """Where constants do not go together: such a kernel says nothing of one that is launched."""
    for operation in reading.makers.values():
        if operation.name in _DIVISIONS:
            by = reading.root(operation.operands[1])
            maker = reading.makers.get(by)
            if (
                maker is not None
                and maker.name == "arith.constant"
                and not constant(maker, by).high
            ):
                return operation
    return None
