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

from harness.kernels.ir.graph import IROperation, IRValue
from harness.kernels.ir.operations import SHAPE_OPERATIONS
from harness.runs.audit.expressions import (
    COMPARISONS,
    UNKNOWN_TEST,
    Expression,
    evaluate_expression,
    evaluate_test,
    iterate_words,
)
from harness.runs.audit.intervals import IntegerRange, make_exact_range
from harness.runs.audit.kernel_case import MAX_GRID, KernelCase
from harness.runs.audit.kernel_graphs import read_graph
from harness.runs.audit.overflow_analysis import OverflowAnalysis, RefinedRanges
from harness.runs.audit.parameter_inference import AssumedParameter
from harness.runs.audit.range_analysis import IntegerRangeAnalysis, LaunchInputs

TRIED_LOADS = (1, 2, 3, 7, 33, 129, 1000, 4097)  # what grows is tried at; each is odd to some block
_DEFAULT_VALUE = 16  # what no name says anything of
_META_CONSTANT = re.compile(r"""\w+\[['"](\w+)['"]\]$""")
_TENSOR_PROPERTY = re.compile(
    r"(?P<name>\w+)\.(?P<what>shape|stride|numel)[\[(](?P<place>-?\d*)[\])]$"
)
_CALLER_NAME = re.compile(r"[A-Za-z_][\w.]*$")  # a name that the function is given
_CONNECTIVES = ("and", "or", "not")
WordValues = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SuspectAccess:
    """An access that may go past the end of a tensor in a launch."""

    access: IROperation
    parameter_name: str  # the kernel's parameter
    quantity: str  # what has grown
    load: int
    word_values: dict[str, int]  # the launch, by words


class SizedCase:
    """A case of which the host's code says enough to launch it with tensors of their true size."""

    def __init__(self, case: KernelCase, fixed_values: WordValues | None = None) -> None:
        self.case = case
        self.launch = case.launch
        self.pointers = {one.name: one for one in case.runtime_parameters if one.is_pointer}
        self.sizes = {
            name: one.host_value.element_count
            for name, one in self.pointers.items()
            if one.host_value.element_count is not None
        }
        self._parameter_names: dict[
            str, str
        ] = {}  # of words: the parameter that is given just that
        for one in case.runtime_parameters:
            if isinstance(one.expression, str) and not one.is_pointer:
                self._parameter_names.setdefault(one.expression, one.name)
        self.fixed_values = dict(fixed_values or {})  # words that constants are made of
        tests = self.launch.preconditions if self.launch is not None else ()
        self._equalities = [pair for test in tests for pair in self._iterate_equalities(test)]
        for word, number in self._equalities:
            if isinstance(number, int):
                self.fixed_values.setdefault(word, number)
        self.unsettled_reason = self._find_unsettled_reason()
        asked = set(self._iterate_kernel_words())
        self.sizes = {
            name: size
            for name, size in self.sizes.items()
            if {one for one in self._iterate_words(size) if self._find_sides(one)} <= asked
        }  # a side that the kernel never hears of is one that the function knows of by itself
        self.words = sorted(
            asked
            | {one for size in self.sizes.values() for one in self._iterate_words(size)}
            | set(self._iterate_tested_words())
        )

    def _find_unsettled_reason(self) -> str:
        """Why nothing can be said of this case."""
        if not self.sizes:
            return "its tensors are made elsewhere"
        launch = self.launch
        if launch is None or launch.grid is None or not launch.is_grid_certain:
            return "its grid is not known"
        for one in self.case.runtime_parameters:
            if _is_integer_parameter(one) and (
                one.host_value.expression == "" or not one.host_value.is_certain
            ):
                return f"what {one.name} is"
        for one in self.case.constants.values():
            if not self._is_settled_constant(one):
                return f"what {one.name} is"
        return ""

    def _is_settled_constant(self, parameter: AssumedParameter) -> bool:
        """Whether a constant is what the host gives, or what nobody gives otherwise."""
        given = parameter.host_value
        if given.kind == "constant":
            return bool(parameter.value == given.value and given.is_certain)
        if given.kind == "number":
            for word in self._iterate_words(given.expression):
                self.fixed_values.setdefault(word, self._find_usual_value(word, parameter.name))
            return (
                given.is_certain
                and self.evaluate(given.expression, self.fixed_values) == parameter.value
            )
        if given.kind == "flag":
            return given.is_certain
        if isinstance(parameter.value, float):
            return True
        if (
            isinstance(given.expression, str)
            and _CALLER_NAME.match(given.expression)
            and given.is_certain
        ):
            if type(parameter.value) is int:
                return (
                    self.fixed_values.setdefault(given.expression, parameter.value)
                    == parameter.value
                )
            return isinstance(parameter.value, bool)
        return parameter.source in ("its tuner", "absent", "default")

    def _iterate_kernel_words(self) -> Iterator[str]:
        """The words that the kernel is given its numbers in."""
        for one in self.case.runtime_parameters:
            if not one.is_pointer:
                yield from self._iterate_words(one.expression)
        for side in (self.launch.grid if self.launch is not None else None) or ():
            yield from self._iterate_words(side)
        yield from self.fixed_values

    def _iterate_tested_words(self) -> Iterator[str]:
        for test in self.launch.preconditions if self.launch is not None else ():
            yield from self._iterate_words_of_test(test)
        for one in self.case.constants.values():
            yield from self._iterate_words_of_test(one.host_value.test or ())

    def _iterate_equalities(self, test: Expression) -> Iterator[tuple[str, Expression]]:
        """Words that a test asks to be one number: `x.shape[1] == 128`."""
        if isinstance(test, tuple) and test[:1] == ("and",):
            for part in test[1:]:
                yield from self._iterate_equalities(part)
        elif isinstance(test, tuple) and test[:1] == ("==",):
            for word, number in (test[1:], test[:0:-1]):
                own = tuple(self._iterate_words(word)) if isinstance(word, str) else ()
                if len(own) == 1 and self._find_constant(word) is None:
                    yield own[0], number
                    return

    def _iterate_words_of_test(self, test: Expression) -> Iterator[str]:
        """What has to be known for a test to be held against a launch."""
        if isinstance(test, tuple) and test and test[0] in (*_CONNECTIVES, *COMPARISONS):
            for part in test[1:]:
                yield from self._iterate_words_of_test(part)
        elif not (isinstance(test, tuple) and (not test or test[0] == UNKNOWN_TEST)):
            yield from self._iterate_words(test)

    def _iterate_words(self, expression: Expression | None) -> Iterator[str]:
        """The words that a number is made of: sides, where it speaks of all of a tensor."""
        for word in iterate_words(expression) if expression is not None else ():
            if self._find_constant(word) is None:
                sides = self._find_sides(word)
                yield from (word,) if sides is None else sides

    def _find_sides(self, word: str) -> tuple[str, ...] | None:
        """Of a contiguous tensor: the sides that these words stand for."""
        found = _TENSOR_PROPERTY.match(word)
        ranks = self.launch.tensor_ranks if self.launch is not None else {}
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

    def _find_constant(self, word: str) -> int | None:
        found = _META_CONSTANT.match(word)
        constant = self.case.constants.get(found[1]) if found else None
        return constant.value if constant is not None else None

    def _find_quantity_name(self, word: str) -> str | None:
        found = self.case.limits.find_quantity(
            word,
            *filter(None, [self._parameter_names.get(word)]),
            side_name=self._find_side_name(word),
        )
        return found.name if found is not None else None

    def _find_side_name(self, word: str) -> str:
        return self.launch.side_names.get(word, "") if self.launch is not None else ""

    def _find_usual_value(self, word: str, *names: str) -> int:
        found = self.case.limits.find_quantity(word, *names, side_name=self._find_side_name(word))
        return found.usual if found is not None else _DEFAULT_VALUE

    # Launches

    def make_launch_values(
        self, shape: Mapping[str, int], quantity: str = "", load: int = 0
    ) -> dict[str, int]:
        """A number for each word: of what grows the load, else by the shape of a model."""
        at = {}
        for word in self.words:
            name = self._find_quantity_name(word) or ""
            usual = self._find_usual_value(word, *filter(None, [self._parameter_names.get(word)]))
            at[word] = load if quantity and name == quantity else shape.get(name, usual)
        return self._apply_equalities(at | self.fixed_values)

    def _apply_equalities(self, word_values: dict[str, int]) -> dict[str, int]:
        for word, number in self._equalities:
            if word not in self.fixed_values:
                word_values[word] = self.evaluate(number, word_values)
        return word_values

    def evaluate(self, expression: Expression, word_values: WordValues) -> int:
        def value_of(word: str) -> int:
            constant = self._find_constant(word)
            if constant is not None:
                return constant
            if (sides := self._find_sides(word)) is not None and word not in sides:
                return prod(word_values[one] for one in sides)
            return (
                word_values[word] if word in word_values else prod(map(value_of, word.split(" * ")))
            )

        return evaluate_expression(expression, value_of)

    def evaluate_grid(self, word_values: WordValues) -> tuple[int, ...]:
        assert self.launch is not None
        assert self.launch.grid is not None
        sides = [max(0, self.evaluate(side, word_values)) for side in self.launch.grid]
        return (*sides, 1, 1)[:3]

    def evaluate_size(self, name: str, word_values: WordValues) -> int:
        size = self.sizes[name]
        assert size is not None
        return max(0, self.evaluate(size, word_values))

    def can_happen(self, word_values: WordValues, name: str) -> bool:
        """Whether the function's own tests let it through, as far as they speak of the tensor."""
        own = self.find_size_words(name)
        assert self.launch is not None
        flags = [
            one.host_value.test if one.value else ("not", one.host_value.test)
            for one in self.case.constants.values()
            if one.host_value.test is not None
        ]
        for test in (*self.launch.preconditions, *flags):
            said = evaluate_test(test, lambda word: self.evaluate(word, word_values))
            if said is False or (said is None and not own.isdisjoint(self._iterate_words(test))):
                return False
        return True

    def find_size_words(self, name: str) -> set[str]:
        """The words that say how large a tensor is, and those that the function asks to be so."""
        found = set(self._iterate_words(self.sizes[name]))
        for word, number in self._equalities:
            said = set(self._iterate_words(number))
            if said <= found:
                found.add(word)
            elif word in found:
                found |= said if isinstance(number, str) else set()
        return found

    def shrink_other_words(
        self, word_values: WordValues, name: str, smallest: int = 1
    ) -> dict[str, int]:
        """The same launch, and all that the tensor's size does not speak of is as little as can be.

        Nothing says how such a word goes together with the size: whoever launches it may know.
        """
        own = self.find_size_words(name)
        return {
            word: value if word in own else min(value, smallest if word in self.fixed_values else 1)
            for word, value in word_values.items()
        }

    def reread(self, kernel: Any, word_values: WordValues) -> SizedCase:
        """The kernel with the constants of another launch."""
        made = [self._replace_constant(one, word_values) for one in self.case.parameters]
        case = KernelCase(read_graph(kernel, made), made, self.launch, self.case.limits)
        return SizedCase(case, {word: word_values[word] for word in self.fixed_values})

    def make_values_at_load(self, suspect: SuspectAccess, load: int) -> dict[str, int]:
        """The same launch at another load."""
        return self._apply_equalities(
            {**suspect.word_values, **dict.fromkeys(self.find_growing_words(suspect), load)}
        )

    def find_growing_words(self, suspect: SuspectAccess) -> list[str]:
        """The words that grow with the load."""
        name = suspect.quantity
        free = (one for one in self.words if one not in self.fixed_values)
        return [one for one in free if name and self._find_quantity_name(one) == name]

    # The kernel

    def _replace_constant(
        self, parameter: AssumedParameter, word_values: WordValues
    ) -> AssumedParameter:
        if (
            parameter.kind != "constexpr"
            or type(parameter.value) is not int
            or parameter.host_value.kind == "constant"
        ):
            return parameter
        words = set(self._iterate_words(parameter.host_value.expression))
        if not words or not words <= self.fixed_values.keys():
            return parameter
        return replace(parameter, value=self.evaluate(parameter.host_value.expression, word_values))

    def find_lines(self, access: IROperation) -> set[tuple[str, int]]:
        """Lines that lead to an access, and to few others."""
        maker = self.case.access_graph.defining_operations.get(access.operands[0])
        return {find_line_key(one) for one in (access, maker) if one is not None}

    # Arithmetic

    def find_overruns(self, word_values: WordValues) -> Iterator[tuple[IROperation, str]]:
        """The accesses that may go past a tensor in this launch."""
        wraps = OverflowAnalysis(
            IntegerRangeAnalysis(self.case.access_graph, self._make_launch_inputs(word_values))
        )
        graph = self.case.graph
        for access, conditions in self.case.access_graph.accesses:
            place = self.case.access_graph.pointer_origins.get(access.operands[0])
            name = graph.parameters[place].name if place is not None else ""
            if name not in self.sizes:
                continue
            bounds = wraps.find_bounds(access, conditions)
            if bounds is None:
                continue
            reach = self._find_offset_range(
                access.operands[0], RefinedRanges(wraps.ranges, bounds).get
            )
            if reach is not None and (
                reach.low < 0 or reach.high >= self.evaluate_size(name, word_values)
            ):
                yield access, name

    def _make_launch_inputs(self, word_values: WordValues) -> LaunchInputs:
        places = {value.name: place for place, value in enumerate(self.case.graph.parameters)}
        parameters, contents = {}, {}
        for order, one in enumerate(self.case.runtime_parameters):
            place = places.get(one.name, order)
            if one.is_pointer:
                contents[place] = make_exact_range(0)
            elif _is_integer_parameter(one):
                parameters[place] = make_exact_range(self.evaluate(one.expression, word_values))
        x, y, z = (
            IntegerRange(0, max(0, min(side, most) - 1))
            for side, most in zip(self.evaluate_grid(word_values), MAX_GRID, strict=True)
        )
        return LaunchInputs(parameters, (x, y, z), contents)

    def _find_offset_range(
        self, pointer: IRValue, get_range: Callable[[IRValue], IntegerRange]
    ) -> IntegerRange | None:
        """How far from where its tensor begins, in elements; None where that is not followed."""
        maker = self.case.access_graph.defining_operations.get(pointer)
        while maker is not None and maker.name in SHAPE_OPERATIONS:
            pointer = maker.operands[0]
            maker = self.case.access_graph.defining_operations.get(pointer)
        if maker is None:
            return (
                make_exact_range(0) if pointer in self.case.access_graph.parameter_indices else None
            )
        if maker.name != "tt.addptr":
            return None
        base, offset = (
            self._find_offset_range(maker.operands[0], get_range),
            get_range(maker.operands[1]),
        )
        if base is None or offset.reasons:
            return None
        return IntegerRange(base.low + offset.low, base.high + offset.high)


def _is_integer_parameter(parameter: AssumedParameter) -> bool:
    return parameter.kind != "i1" and parameter.kind[0] in "iu"


def find_line_key(operation: IROperation) -> tuple[str, int]:
    return operation.source.file, operation.source.line


def iterate_suspects(sized: SizedCase) -> Iterator[SuspectAccess]:
    """Each access once: at the least load that is tried, of the usual shape or a model's."""
    limits = sized.case.limits
    named = {name for word in sized.words if (name := sized._find_quantity_name(word))}
    growing = sorted(name for name in named if limits.quantities[name].size)
    seen: set[tuple[str, tuple[str, int]]] = set()  # tensors and lines
    tried: list[dict[str, int]] = []
    for shape in ({}, *(one.values for one in limits.models)):
        for load in TRIED_LOADS:
            for quantity in growing or [""]:
                at = sized.make_launch_values(shape, quantity, load)
                if at in tried:
                    continue
                tried.append(at)
                for access, name in sized.find_overruns(at):
                    key = name, find_line_key(access)
                    if key not in seen and sized.can_happen(at, name):
                        seen.add(key)
                        yield SuspectAccess(access, name, quantity, load, at)
