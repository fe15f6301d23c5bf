"""One kernel's verdict: proven for all launches, or the smallest launch that wraps.

Numbers of the host are known by quantities of the limits file. First every quantity is a range from
one to its largest: what stays in its type there is safe. What does not is looked for at single
launches, of each model's shape, and the load that it takes is found by halving.
"""

from __future__ import annotations

import linecache
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from harness.audit.arguments import LAUNCHED, SOURCES, Parameter
from harness.audit.conditions import Wrap, Wraps
from harness.audit.expressions import Expression, evaluated, several, symbols, words
from harness.audit.findings import Finding, Reach
from harness.audit.host import Launch
from harness.audit.intervals import Range, exactly
from harness.audit.limits import Limits, Model, Quantity
from harness.audit.ranges import HUGE, Ranges, World, divided_by_zero
from harness.audit.shape import Shape
from harness.kernels.graph import Graph, Operation, Value, bits_of

_AXES = "xyz"
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
        self._named = {one.name: one for one in parameters}
        self._compiled = {  # by a word that nobody says more of: what it is compiled with
            one.given.expression: one.value
            for one in self.constants.values()
            if one.given.kind == "unknown" and type(one.value) is int
        }
        self._programs = {
            axis: next(
                (
                    one.result.name
                    for one in graph.operations()
                    if one.name == "tt.get_program_id" and _AXES[axis] in _axis_of(one)
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
            found |= self._of_expression(one.expression, one.name)
        for axis in range(3):
            found |= self._of_expression(self._side(axis), self._programs[axis])
        return found

    def _of_expression(self, expression: Expression, name: str) -> set[str]:
        many = several(expression)
        known = (self._symbol(one, name, many) for one in symbols(expression))
        return {one.name for one in known if one is not None}

    def _symbol(self, word: str, name: str, many: bool) -> Quantity | None:
        """`many`: the name is that of an expression in which there are others."""
        called = self.launch.called.get(word, "") if self.launch is not None else ""
        own = self.limits.quantity(word, called=called) if many else None
        return own or self.limits.quantity(word, *([name] if name else []), called=called)

    def _side(self, axis: int) -> Expression:
        grid = self.launch.grid if self.launch is not None else None
        if grid is not None:
            return grid[axis] if axis < len(grid) else 1
        return self._programs[axis] or 1

    def _value(self, expression: Expression, name: str, at: Mapping[str, int]) -> Range:
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
            value = self._value(one.expression, one.name, at)
            parameters[place] = (
                Range(min(1, value.high), value.high, value.why) if ranged else value
            )
        sides = []
        for axis in range(3):
            side = self._value(self._side(axis), self._programs[axis], at)
            high = min(max(0, side.high - 1), MOST[axis] - 1)
            sides.append(Range(0, high, side.why))
        return World(parameters, (sides[0], sides[1], sides[2]), contents, ranged)

    def number(self, one: Parameter, at: Mapping[str, int]) -> int:
        return self._value(one.expression, one.name, at).high

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
        return {_place(one.operation) for one in wraps}


def examined(
    case: Case, module: str, lines: Collection[str] | None = None
) -> tuple[list[tuple[Finding, dict[str, int]]], set[str]]:
    """The findings, each with the load that it is seen at, and why something cannot be told.

    `lines`: no others are looked at, by their text.
    """
    reasons: set[str] = set()
    suspects = case.wraps(case.largest(), ranged=True)
    if not suspects:
        return [], reasons
    certain = {_place(one.operation) for one in case.wraps(case.largest()) if one.known}
    leading = case.leads(case.largest())
    findings: list[tuple[Finding, dict[str, int]]] = []
    for place in sorted(
        {_place(one.operation) for one in suspects}, key=lambda one: (one.file, one.line)
    ):
        if lines is not None and " ".join(_text(place).split()) not in lines:
            continue
        here = [one for one in suspects if _place(one.operation) == place]
        if place in certain:
            found = _smallest(case, module, place)
            if found is not None and (sides := _of_nobody(case, found[0])):
                reasons.add(f"wraps with sides that no model is known to have: {sides}")
                continue
            if found is not None:
                findings.append(found)
                continue
        if place not in leading:
            continue  # what wraps there has wrapped before, and is told there
        why = sorted({reason for one in here for reason in one.range.why})
        reasons |= set(why[:2]) or {"ranges that are too coarse"}
    return findings, reasons


def _of_nobody(case: Case, found: Finding) -> str:
    """Sides of tensors that no name says anything of, grown beyond every model's shape."""
    if not found.model and ".shape[" in found.shape:
        return found.shape
    grown = f"{found.grows} = {found.value:,}"
    side = ".shape[" in found.grows and not case.limits.quantities[found.quantity].size
    return grown if side else ""


def _smallest(case: Case, module: str, place: Place) -> tuple[Finding, dict[str, int]] | None:
    """The least load at which this line wraps, of the model that comes to it first."""
    found: list[tuple[float, str, int, dict[str, int], str]] = []
    reaches = []
    known: dict[tuple[int, ...], tuple[str, int, dict[str, int]] | None] = {}
    for model in case.limits.models:
        shape = case.usual() | {
            name: value
            for name, value in model.values.items()
            if name in case.used and name not in case.sizes
        }
        key = (*shape.values(), _most(case, "context", model) if "context" in case.sizes else 0)
        if key not in known:
            known[key] = _threshold(case, shape, place, model)
        best = known[key]
        reaches.append(Reach(model.name, best[1] if best else 0))
        if best is not None:
            found.append((best[1] / _most(case, best[0], model), *best, model.name))
    if not found:
        best = _threshold(case, case.largest(), place, None)
        if best is None:
            return None
        found.append((1.0, *best, ""))
    _, name, threshold, at, model_name = min(found, key=lambda one: one[0])
    wrap = case.wraps_at(at, place)
    assert wrap is not None
    made = _finding(case, module, place, wrap, at, name, threshold, model_name, tuple(reaches))
    return made, at


def _most(case: Case, name: str, model: Model | None) -> int:
    largest = case.limits.quantities[name].largest
    if model is not None and name == "context":
        return min(largest, model.values.get("context", largest))
    return largest


def _threshold(
    case: Case, shape: dict[str, int], place: Place, model: Model | None
) -> tuple[str, int, dict[str, int]] | None:
    """What has to grow, from where on, and what else there is, as usual or as little as can be."""
    best: tuple[float, str, int, dict[str, int]] | None = None
    for name in case.sizes or case.used:
        most = _most(case, name, model)
        for others in (shape, shape | dict.fromkeys(case.sizes, 1)):
            if case.wraps_at({**others, name: most}, place) is None:
                continue
            if case.wraps_at({**others, name: 1}, place) is not None:
                continue  # it is something else that grows
            low, high = 1, most
            while high - low > 1:
                middle = (low + high) // 2
                if case.wraps_at({**others, name: middle}, place) is None:
                    low = middle
                else:
                    high = middle
            first = {**others, name: high}
            if case.wraps_at(first, place, own=True) is None:
                break  # what it is made of wraps before
            if best is None or high / most < best[0]:
                best = (high / most, name, high, first)
            break
    return None if best is None else best[1:]


def _finding(
    case: Case,
    module: str,
    place: Place,
    wrap: Wrap,
    at: Mapping[str, int],
    name: str,
    threshold: int,
    model: str,
    reaches: tuple[Reach, ...],
) -> Finding:
    cone = _cone(case.reading, wrap.operation)
    near, grows, value_there = [], "", threshold
    places = {value: value.name for value in case.graph.parameters}
    for value in sorted(cone, key=lambda one: one.number):
        parameter = case._named.get(places.get(value, ""))
        if parameter is None or parameter.kind == "constexpr" or parameter.is_pointer:
            continue
        text = words(parameter.expression)
        used = case._of_expression(parameter.expression, parameter.name)
        if name in used and not grows:
            grows, value_there = text, case.number(parameter, at)
        elif used and name not in used:
            near.append(f"{text} = {case._value(parameter.expression, parameter.name, at).high:,}")
    for value in cone:
        maker = case.reading.makers.get(value)
        if grows or maker is None:
            continue
        if maker.name == "tt.get_program_id":
            axis = next(axis for axis in range(3) if _AXES[axis] in _axis_of(maker))
            side = case._side(axis)
            if name in case._of_expression(side, case._programs[axis]):
                grows, value_there = words(side), case.world(at, False).programs[axis].high + 1
        elif maker.name == "tt.load":
            held = case.reading.origins.get(maker.operands[0])
            of = case._named.get(case.graph.parameters[held].name) if held is not None else None
            quantity = case.holds(of) if of is not None else None
            if of is not None and quantity is not None and quantity.name == name:
                grows = f"what {of.name} holds"
                value_there = threshold - 1
    kind = wrap.operation.result.kind.element
    return Finding(
        kernel=case.graph.name,
        module=module,
        file=place.file,
        line=place.line,
        text=_text(place),
        element=kind.replace("i", "int"),
        access=wrap.access.name.removeprefix("tt."),
        access_line=wrap.access.source.line,
        quantity=name,
        threshold=threshold,
        largest=case.limits.quantities[name].largest,
        shape=", ".join(dict.fromkeys(near)),
        grows=grows or name,
        value=value_there,
        model=model,
        reaches=reaches,
        arithmetic=_arithmetic(case, wrap, at),
        launched=f"{case.launch.file}:{case.launch.line}" if case.launch else "",
        setting=case.limits.quantities[name].setting,
        constants=case.said,
    )


def restated(case: Case, finding: Finding, at: Mapping[str, int], threshold: int) -> Finding:
    """The same at another load."""
    if threshold == finding.threshold:
        return finding
    place = Place(finding.file, finding.line)
    wrap = case.wraps_at(at, place)
    if wrap is None:  # it wraps where arithmetic over ranges does not see it yet
        return replace(finding, threshold=threshold, value=threshold)
    return _finding(
        case, finding.module, place, wrap, at, finding.quantity, threshold, finding.model,
        finding.reaches,
    )  # fmt: skip


def _arithmetic(case: Case, wrap: Wrap, at: Mapping[str, int]) -> str:
    ranges = Ranges(case.reading, case.world(at, False))
    symbol = {"addi": "+", "subi": "-", "muli": "*", "shli": "<<"}.get(
        wrap.operation.name.removeprefix("arith."), "narrowed"
    )
    parts = [f"{ranges.get(one).high:,}" for one in wrap.operation.operands]
    kind = wrap.operation.result.kind.element.replace("i", "int")
    return f"{f' {symbol} '.join(parts)} is up to {wrap.range.high:,}, more than {kind} holds"


def _cone(reading: Shape, operation: Operation) -> list[Value]:
    found: dict[Value, None] = {}
    waiting = list(operation.operands)
    while waiting:
        value = waiting.pop(0)
        if value in found:
            continue
        found[value] = None
        waiting += reading.carried.get(value, ())
        maker = reading.makers.get(value)
        if maker is not None and maker.name != "tt.load":
            waiting += maker.operands
    return list(found)


def _place(operation: Operation) -> Place:
    return Place(operation.source.file, operation.source.line)


def _text(place: Place) -> str:
    return linecache.getline(place.file, place.line).strip()


def _axis_of(operation: Operation) -> str:
    text = operation.attributes.get("axis", "0").split(":")[0].strip()
    return _AXES[int(text)] if text.isdigit() else text
