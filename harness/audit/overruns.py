"""Accesses past the tensors that a launching function makes itself.

The host's code says how many elements such a tensor has, in the words that it gives the kernel its
numbers in. Each word is a number of its own here; one launch after the other is looked at, with
ranges of the addresses, and what may go past an end is run. Tensors of numbers hold zeros: an
index, a length or a flag that anybody may have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from harness.audit.arguments import Parameter
from harness.audit.case import MOST, Case
from harness.audit.conditions import Refined, Wraps
from harness.audit.expressions import COMPARISONS, UNKNOWN, Expression, evaluated, holds, single
from harness.audit.intervals import Range, exactly
from harness.audit.ranges import Ranges, World
from harness.audit.reading import read
from harness.kernels.graph import Operation, Value

LOADS = (1, 2, 3, 7, 33, 129, 1000, 4097)  # what grows is tried at; each is odd to some block
_USUAL = 16  # what no name says anything of
_SAME = frozenset({"tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans"})
_CONSTANT = re.compile(r"""\w+\[['"](\w+)['"]\]$""")
_OF_TENSOR = re.compile(r"(?P<name>\w+)\.(?P<what>shape|stride|numel)[\[(](?P<place>-?\d*)[\])]$")
_CALLERS = re.compile(r"[A-Za-z_][\w.]*$")  # a name that the function is given
_JOINED = ("and", "or", "not")
At = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Suspect:
    """An access that may go past the end of a tensor in a launch."""

    access: Operation
    name: str  # the kernel's parameter
    quantity: str  # what has grown
    load: int
    at: dict[str, int]  # the launch, by words


class Sized:
    """A case of which the host's code says enough to launch it with tensors of their true size."""

    def __init__(self, case: Case, fixed: At | None = None) -> None:
        self.case = case
        self.launch = case.launch
        self.pointers = {one.name: one for one in case.runtime if one.is_pointer}
        self.sizes = {
            name: one.given.elements
            for name, one in self.pointers.items()
            if one.given.elements is not None
        }
        self._names: dict[str, str] = {}  # of words: the parameter that is given just that
        for one in case.runtime:
            if isinstance(one.expression, str) and not one.is_pointer:
                self._names.setdefault(one.expression, one.name)
        self.fixed = dict(fixed or {})  # words that constants are made of
        tests = self.launch.demands if self.launch is not None else ()
        self._equal = [pair for test in tests for pair in self._equalities(test)]
        for word, number in self._equal:
            if isinstance(number, int):
                self.fixed.setdefault(word, number)
        self.unsettled = self._unsettled()
        asked = set(self._asked())
        self.sizes = {
            name: size
            for name, size in self.sizes.items()
            if {one for one in self._of(size) if self._sides(one)} <= asked
        }  # a side that the kernel never hears of is one that the function knows of by itself
        self.words = sorted(
            asked
            | {one for size in self.sizes.values() for one in self._of(size)}
            | set(self._tests())
        )

    def _unsettled(self) -> str:
        """Why nothing can be said of this case."""
        if not self.sizes:
            return "its tensors are made elsewhere"
        launch = self.launch
        if launch is None or launch.grid is None or not launch.sure:
            return "its grid is not known"
        for one in self.case.runtime:
            if _is_number(one) and (one.given.expression == "" or not one.given.sure):
                return f"what {one.name} is"
        for one in self.case.constants.values():
            if not self._is_given(one):
                return f"what {one.name} is"
        return ""

    def _is_given(self, one: Parameter) -> bool:
        """Whether a constant is what the host gives, or what nobody gives otherwise."""
        given = one.given
        if given.kind == "constant":
            return bool(one.value == given.value and given.sure)
        if given.kind == "number":
            for word in self._of(given.expression):
                self.fixed.setdefault(word, self._usual(word, one.name))
            return given.sure and self.number(given.expression, self.fixed) == one.value
        if given.kind == "flag":
            return given.sure
        if isinstance(one.value, float):
            return True
        if isinstance(given.expression, str) and _CALLERS.match(given.expression) and given.sure:
            if type(one.value) is int:
                return self.fixed.setdefault(given.expression, one.value) == one.value
            return isinstance(one.value, bool)
        return one.source in ("its tuner", "absent", "default")

    def _asked(self) -> Iterator[str]:
        """The words that the kernel is given its numbers in."""
        for one in self.case.runtime:
            if not one.is_pointer:
                yield from self._of(one.expression)
        for side in (self.launch.grid if self.launch is not None else None) or ():
            yield from self._of(side)
        yield from self.fixed

    def _tests(self) -> Iterator[str]:
        for test in self.launch.demands if self.launch is not None else ():
            yield from self._tested(test)
        for one in self.case.constants.values():
            yield from self._tested(one.given.test or ())

    def _equalities(self, test: Expression) -> Iterator[tuple[str, Expression]]:
        """Words that a test asks to be one number: `x.shape[1] == 128`."""
        if isinstance(test, tuple) and test[:1] == ("and",):
            for part in test[1:]:
                yield from self._equalities(part)
        elif isinstance(test, tuple) and test[:1] == ("==",):
            for word, number in (test[1:], test[:0:-1]):
                own = tuple(self._of(word)) if isinstance(word, str) else ()
                if len(own) == 1 and self._constant(word) is None:
                    yield own[0], number
                    return

    def _tested(self, test: Expression) -> Iterator[str]:
        """What has to be known for a test to be held against a launch."""
        if isinstance(test, tuple) and test and test[0] in (*_JOINED, *COMPARISONS):
            for part in test[1:]:
                yield from self._tested(part)
        elif not (isinstance(test, tuple) and (not test or test[0] == UNKNOWN)):
            yield from self._of(test)

    def _of(self, expression: Expression | None) -> Iterator[str]:
        """The words that a number is made of: sides, where it speaks of all of a tensor."""
        for word in single(expression) if expression is not None else ():
            if self._constant(word) is None:
                sides = self._sides(word)
                yield from (word,) if sides is None else sides

    def _sides(self, word: str) -> tuple[str, ...] | None:
        """Of a contiguous tensor: the sides that these words stand for."""
        found = _OF_TENSOR.match(word)
        ranks = self.launch.ranks if self.launch is not None else {}
        if found is None or found["name"] not in ranks:
            return None
        rank, place = ranks[found["name"]], int(found["place"] or 0)
        if not -rank <= place < rank:
            return None
        place %= rank
        first, last = {
            "shape": (place, place + 1),
            "stride": (place + 1, rank),
            "numel": (0, rank),
        }[found["what"]]
        return tuple(f"{found['name']}.shape[{side}]" for side in range(first, last))

    def _constant(self, word: str) -> int | None:
        found = _CONSTANT.match(word)
        constant = self.case.constants.get(found[1]) if found else None
        return constant.value if constant is not None else None

    def _quantity(self, word: str) -> str | None:
        found = self.case.limits.quantity(
            word, *filter(None, [self._names.get(word)]), called=self._called(word)
        )
        return found.name if found is not None else None

    def _called(self, word: str) -> str:
        return self.launch.called.get(word, "") if self.launch is not None else ""

    def _usual(self, word: str, *names: str) -> int:
        found = self.case.limits.quantity(word, *names, called=self._called(word))
        return found.usual if found is not None else _USUAL

    # Launches

    def launched(
        self, shape: Mapping[str, int], quantity: str = "", load: int = 0
    ) -> dict[str, int]:
        """A number for each word: of what grows the load, else by the shape of a model."""
        at = {}
        for word in self.words:
            name = self._quantity(word) or ""
            usual = self._usual(word, *filter(None, [self._names.get(word)]))
            at[word] = load if quantity and name == quantity else shape.get(name, usual)
        return self._equalized(at | self.fixed)

    def _equalized(self, at: dict[str, int]) -> dict[str, int]:
        for word, number in self._equal:
            if word not in self.fixed:
                at[word] = self.number(number, at)
        return at

    def number(self, expression: Expression, at: At) -> int:
        def value_of(word: str) -> int:
            constant = self._constant(word)
            if constant is not None:
                return constant
            if (sides := self._sides(word)) is not None and word not in sides:
                return prod(at[one] for one in sides)
            return at[word] if word in at else prod(map(value_of, word.split(" * ")))

        return evaluated(expression, value_of)

    def grid(self, at: At) -> tuple[int, ...]:
        assert self.launch is not None
        assert self.launch.grid is not None
        sides = [max(0, self.number(side, at)) for side in self.launch.grid]
        return (*sides, 1, 1)[:3]

    def size(self, name: str, at: At) -> int:
        size = self.sizes[name]
        assert size is not None
        return max(0, self.number(size, at))

    def may_happen(self, at: At, name: str) -> bool:
        """Whether the function's own tests let it through, as far as they speak of the tensor."""
        own = self.own(name)
        assert self.launch is not None
        flags = [
            one.given.test if one.value else ("not", one.given.test)
            for one in self.case.constants.values()
            if one.given.test is not None
        ]
        for test in (*self.launch.demands, *flags):
            said = holds(test, lambda word: self.number(word, at))
            if said is False or (said is None and not own.isdisjoint(self._of(test))):
                return False
        return True

    def own(self, name: str) -> set[str]:
        """The words that say how large a tensor is, and those that the function asks to be so."""
        found = set(self._of(self.sizes[name]))
        for word, number in self._equal:
            said = set(self._of(number))
            if said <= found:
                found.add(word)
            elif word in found:
                found |= said if isinstance(number, str) else set()
        return found

    def foreign(self, at: At, name: str, least: int = 1) -> dict[str, int]:
        """The same launch, and all that the tensor's size does not speak of is as little as can be.

        Nothing says how such a word goes together with the size: whoever launches it may know.
        """
        own = self.own(name)
        return {
            word: value if word in own else min(value, least if word in self.fixed else 1)
            for word, value in at.items()
        }

    def reread(self, kernel: Any, at: At) -> Sized:
        """The kernel with the constants of another launch."""
        made = [self._with(one, at) for one in self.case.given]
        case = Case(read(kernel, made), made, self.launch, self.case.limits)
        return Sized(case, {word: at[word] for word in self.fixed})

    def again(self, suspect: Suspect, load: int) -> dict[str, int]:
        """The same launch at another load."""
        return self._equalized({**suspect.at, **dict.fromkeys(self.growing(suspect), load)})

    def growing(self, suspect: Suspect) -> list[str]:
        """The words that grow with the load."""
        name = suspect.quantity
        free = (one for one in self.words if one not in self.fixed)
        return [one for one in free if name and self._quantity(one) == name]

    # The kernel

    def _with(self, one: Parameter, at: At) -> Parameter:
        if one.kind != "constexpr" or type(one.value) is not int or one.given.kind == "constant":
            return one
        words = set(self._of(one.given.expression))
        if not words or not words <= self.fixed.keys():
            return one
        return replace(one, value=self.number(one.given.expression, at))

    def lines_of(self, access: Operation) -> set[tuple[str, int]]:
        """Lines that lead to an access, and to few others."""
        maker = self.case.reading.makers.get(access.operands[0])
        return {place_of(one) for one in (access, maker) if one is not None}

    # Arithmetic

    def past(self, at: At) -> Iterator[tuple[Operation, str]]:
        """The accesses that may go past a tensor in this launch."""
        wraps = Wraps(Ranges(self.case.reading, self._world(at)))
        graph = self.case.graph
        for access, conditions in self.case.reading.accesses:
            place = self.case.reading.origins.get(access.operands[0])
            name = graph.parameters[place].name if place is not None else ""
            if name not in self.sizes:
                continue
            bounds = wraps.bounds(access, conditions)
            if bounds is None:
                continue
            reach = self._reach(access.operands[0], Refined(wraps.ranges, bounds).get)
            if reach is not None and (reach.low < 0 or reach.high >= self.size(name, at)):
                yield access, name

    def _world(self, at: At) -> World:
        places = {value.name: place for place, value in enumerate(self.case.graph.parameters)}
        parameters, contents = {}, {}
        for order, one in enumerate(self.case.runtime):
            place = places.get(one.name, order)
            if one.is_pointer:
                contents[place] = exactly(0)
            elif _is_number(one):
                parameters[place] = exactly(self.number(one.expression, at))
        x, y, z = (
            Range(0, max(0, min(side, most) - 1))
            for side, most in zip(self.grid(at), MOST, strict=True)
        )
        return World(parameters, (x, y, z), contents)

    def _reach(self, pointer: Value, get: Callable[[Value], Range]) -> Range | None:
        """How far from where its tensor begins, in elements; None where that is not followed."""
        maker = self.case.reading.makers.get(pointer)
        while maker is not None and maker.name in _SAME:
            pointer = maker.operands[0]
            maker = self.case.reading.makers.get(pointer)
        if maker is None:
            return exactly(0) if pointer in self.case.reading.places else None
        if maker.name != "tt.addptr":
            return None
        base, offset = self._reach(maker.operands[0], get), get(maker.operands[1])
        if base is None or offset.why:
            return None
        return Range(base.low + offset.low, base.high + offset.high)


def _is_number(one: Parameter) -> bool:
    return one.kind != "i1" and one.kind[0] in "iu"


def place_of(operation: Operation) -> tuple[str, int]:
    return operation.source.file, operation.source.line


def suspects(sized: Sized) -> Iterator[Suspect]:
    """Each access once: at the least load that is tried, of the usual shape or a model's."""
    limits = sized.case.limits
    named = {name for word in sized.words if (name := sized._quantity(word))}
    growing = sorted(name for name in named if limits.quantities[name].size)
    seen: set[tuple[str, tuple[str, int]]] = set()  # tensors and lines
    tried: list[dict[str, int]] = []
    for shape in ({}, *(one.values for one in limits.models)):
        for load in LOADS:
            for quantity in growing or [""]:
                at = sized.launched(shape, quantity, load)
                if at in tried:
                    continue
                tried.append(at)
                for access, name in sized.past(at):
                    key = name, place_of(access)
                    if key not in seen and sized.may_happen(at, name):
                        seen.add(key)
                        yield Suspect(access, name, quantity, load, at)
