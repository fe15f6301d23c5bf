"""Finds accesses past the tensors that a launching function makes itself, by arithmetic.

The host's code has the size of such a tensor in the same words as the kernel's numbers:
`out = torch.empty(rows // 8 * 8)` and `fill[(cdiv(rows, 64),)](out, rows)`. Each word gets a
number, and launches are tried in turn. At `rows = 1` the tensor has 0 elements and the mask lets
index 0 through: a suspect, to be confirmed by a run. Integer tensors are filled with zeros, a valid
index, length and flag of any caller.

Invariant: no suspect where the host's code leaves a number open, or where its own asserts and
branches forbid the launch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from harness.runs.audit.expressions import (
    COMPARISONS,
    UNKNOWN_TEST,
    Expression,
    evaluate_expression,
    evaluate_test,
    iterate_words,
)
from harness.runs.audit.kernel_case import MAX_GRID, KernelCase
from harness.runs.audit.kernel_graphs import read_graph
from harness.runs.audit.overflow_analysis import OverflowAnalysis, RefinedRanges
from harness.runs.audit.parameter_inference import AssumedParameter
from harness.runs.audit.range_analysis import IntegerRangeAnalysis, LaunchInputs
from harness.runs.audit.size_limits import SizeQuantity
from harness.sanitizer.ir.access_graph import get_element_bytes
from harness.sanitizer.ir.graph import FileLine, IROperation, IRValue
from harness.sanitizer.ir.intervals import IntegerRange, RangeGetter, make_exact_range

_DEFAULT_VALUE = 16  # the number of a word without a quantity in the limits file
_META_CONSTANT = re.compile(r"""\w+\[['"](\w+)['"]\]$""")
_TENSOR_PROPERTY = re.compile(
    r"(?P<name>\w+)\.(?P<property>shape|stride|numel)[\[(](?P<dimension>-?\d*)[\])]$"
)
_CALLER_NAME = re.compile(r"[A-Za-z_][\w.]*$")  # a name from the function's caller
_CONNECTIVES = ("and", "or", "not")
WordValues = Mapping[str, int]
Overrun = tuple[IROperation, str]  # an access, and the parameter whose tensor it leaves


@dataclass(frozen=True, slots=True)
class SuspectAccess:
    """An access that may leave a tensor in a launch."""

    access: IROperation
    parameter_name: str
    quantity: str  # the quantity that grows to the load, if any does
    load: int
    word_values: dict[str, int]  # the numbers of the launch

    def is_among(self, overruns: Iterable[Overrun]) -> bool:
        line = self.access.source.line_key
        return any(
            name == self.parameter_name and access.source.line_key == line
            for access, name in overruns
        )


class SizedCase:
    """A case with enough host code to launch it with a tensor of its true size."""

    def __init__(self, case: KernelCase, fixed_values: WordValues | None = None) -> None:
        self.case = case
        self.launch = launch = case.launch
        self._ranks = launch.tensor_ranks if launch is not None else {}
        self._preconditions = launch.preconditions if launch is not None else ()
        sizes = {
            each.name: each.host_value.element_count
            for each in case.runtime_parameters
            if each.is_pointer and each.host_value.element_count is not None
        }
        # By word: the parameter whose argument is that word alone.
        self._parameter_names: dict[str, str] = {}
        for each in case.runtime_parameters:
            if isinstance(each.expression, str) and not each.is_pointer:
                self._parameter_names.setdefault(each.expression, each.name)
        self.fixed_values = dict(fixed_values or {})  # compiled into the kernel
        self._equalities = [
            pair for test in self._preconditions for pair in self._iterate_equalities(test)
        ]
        for word, number in self._equalities:
            if isinstance(number, int):
                self.fixed_values.setdefault(word, number)
        self.unsettled_reason = (
            self._find_unsettled_reason() if sizes else "its tensors are made elsewhere"
        )
        kernel_words = set(self._iterate_kernel_words())
        # A size may have a side that only the function knows, not the kernel.
        self.sizes = {
            name: size
            for name, size in sizes.items()
            if {word for word in self._iterate_words(size) if self._find_sides(word)}
            <= kernel_words
        }
        size_words = {word for size in self.sizes.values() for word in self._iterate_words(size)}
        self.words = sorted(kernel_words | size_words | set(self._iterate_tested_words()))

    def _find_unsettled_reason(self) -> str:
        """Explain why the case cannot be analyzed; '' if it can."""
        if self.launch is None or self.launch.grid is None or not self.launch.is_grid_certain:
            return "its grid is not known"
        for parameter in self.case.runtime_parameters:
            host_value = parameter.host_value
            if _is_integer(parameter) and (
                host_value.expression == "" or not host_value.is_certain
            ):
                return f"what {parameter.name} is"
        for parameter in self.case.constants.values():
            if not self._is_settled_constant(parameter):
                return f"what {parameter.name} is"
        return ""

    def _is_settled_constant(self, parameter: AssumedParameter) -> bool:
        """Return whether every caller passes this constant, by the host's code."""
        host_value, value = parameter.host_value, parameter.value
        if host_value.kind == "constant":
            return bool(value == host_value.value and host_value.is_certain)
        if host_value.kind == "number":
            for word in self._iterate_words(host_value.expression):
                self.fixed_values.setdefault(word, self._find_usual_value(word, parameter.name))
            return (
                host_value.is_certain
                and self.evaluate(host_value.expression, self.fixed_values) == value
            )
        if host_value.kind == "flag":
            return host_value.is_certain
        if isinstance(value, float):
            return True
        name = host_value.expression
        if isinstance(name, str) and _CALLER_NAME.match(name) and host_value.is_certain:
            if type(value) is int:
                return self.fixed_values.setdefault(name, value) == value
            return isinstance(value, bool)
        return parameter.source in ("its tuner", "absent", "default")

    def _iterate_kernel_words(self) -> Iterator[str]:
        """Iterate the words of the kernel's number arguments."""
        for parameter in self.case.runtime_parameters:
            if not parameter.is_pointer:
                yield from self._iterate_words(parameter.expression)
        for side in (self.launch.grid if self.launch is not None else None) or ():
            yield from self._iterate_words(side)
        yield from self.fixed_values

    def _iterate_tested_words(self) -> Iterator[str]:
        for test in self._preconditions:
            yield from self._iterate_words_of_test(test)
        for parameter in self.case.constants.values():
            yield from self._iterate_words_of_test(parameter.host_value.test or ())

    def _iterate_equalities(self, test: Expression) -> Iterator[tuple[str, Expression]]:
        """Iterate the words that a test requires to be one number: `x.shape[1] == 128`."""
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
        if isinstance(test, tuple) and test and test[0] in (*_CONNECTIVES, *COMPARISONS):
            for part in test[1:]:
                yield from self._iterate_words_of_test(part)
        elif not (isinstance(test, tuple) and (not test or test[0] == UNKNOWN_TEST)):
            yield from self._iterate_words(test)

    def _iterate_words(self, expression: Expression | None) -> Iterator[str]:
        """Iterate the words of a number, with `x.numel()` as the sides of `x`."""
        for word in iterate_words(expression) if expression is not None else ():
            if self._find_constant(word) is None:
                sides = self._find_sides(word)
                yield from (word,) if sides is None else sides

    def _find_sides(self, word: str) -> tuple[str, ...] | None:
        """Find the sides of a contiguous tensor that a word is the product of.

        Of three dimensions `x.stride(0)` is `x.shape[1]` times `x.shape[2]`.
        """
        match = _TENSOR_PROPERTY.match(word)
        if match is None or match["name"] not in self._ranks:
            return None
        rank, dimension = self._ranks[match["name"]], int(match["dimension"] or 0)
        if not -rank <= dimension < rank:
            return None
        dimension %= rank
        sides = {
            "shape": range(dimension, dimension + 1),
            "stride": range(dimension + 1, rank),
            "numel": range(rank),
        }[match["property"]]
        return tuple(f"{match['name']}.shape[{side}]" for side in sides)

    def _find_constant(self, word: str) -> int | None:
        match = _META_CONSTANT.match(word)
        constant = self.case.constants.get(match[1]) if match else None
        return constant.value if constant is not None else None

    def find_quantity(self, word: str, *names: str) -> SizeQuantity | None:
        names = names or tuple(filter(None, [self._parameter_names.get(word)]))
        side_name = self.launch.side_names.get(word, "") if self.launch is not None else ""
        return self.case.limits.find_quantity(word, *names, side_name=side_name)

    def _find_usual_value(self, word: str, *names: str) -> int:
        quantity = self.find_quantity(word, *names)
        return quantity.usual if quantity is not None else _DEFAULT_VALUE

    # Launches

    def make_launch_values(
        self, shape: Mapping[str, int], quantity: str = "", load: int = 0
    ) -> dict[str, int]:
        """Give each word a number: the load if it grows, else the one of the model's shape."""
        values = {}
        for word in self.words:
            own = self.find_quantity(word)
            name, usual = (own.name, own.usual) if own is not None else ("", _DEFAULT_VALUE)
            values[word] = load if quantity and name == quantity else shape.get(name, usual)
        return self._apply_equalities(values | self.fixed_values)

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
            sides = self._find_sides(word)
            if sides is not None and word not in sides:
                return prod(word_values[side] for side in sides)
            if word in word_values:
                return word_values[word]
            return prod(map(value_of, word.split(" * ")))

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
        """Return whether the function's own tests allow the launch.

        A test that cannot be evaluated forbids it if it mentions the size of the tensor.
        """
        size_words = self.find_size_words(name)
        flags = [
            each.host_value.test if each.value else ("not", each.host_value.test)
            for each in self.case.constants.values()
            if each.host_value.test is not None
        ]
        for test in (*self._preconditions, *flags):
            holds = evaluate_test(test, lambda word: self.evaluate(word, word_values))
            if holds is False:
                return False
            if holds is None and not size_words.isdisjoint(self._iterate_words(test)):
                return False
        return True

    def find_size_words(self, name: str) -> set[str]:
        """Find the words of a tensor's size, and those that the function requires to equal them."""
        words = set(self._iterate_words(self.sizes[name]))
        for word, number in self._equalities:
            others = set(self._iterate_words(number))
            if others <= words:
                words.add(word)
            elif word in words and isinstance(number, str):
                words |= others
        return words

    def shrink_other_words(
        self, word_values: WordValues, name: str, smallest: int = 1
    ) -> dict[str, int]:
        """Make every word minimal, except those of the tensor's size."""
        size_words = self.find_size_words(name)
        return {
            word: value
            if word in size_words
            else min(value, smallest if word in self.fixed_values else 1)
            for word, value in word_values.items()
        }

    def reread(self, kernel: Any, word_values: WordValues) -> SizedCase:
        """Read the kernel with the constants of another launch."""
        parameters = [self._replace_constant(each, word_values) for each in self.case.parameters]
        case = KernelCase(read_graph(kernel, parameters), parameters, self.launch, self.case.limits)
        return SizedCase(case, {word: word_values[word] for word in self.fixed_values})

    def make_values_at_load(self, suspect: SuspectAccess, load: int) -> dict[str, int]:
        grown = dict.fromkeys(self.find_growing_words(suspect), load)
        return self._apply_equalities({**suspect.word_values, **grown})

    def find_growing_words(self, suspect: SuspectAccess) -> list[str]:
        return [
            word
            for word in self.words
            if word not in self.fixed_values
            and suspect.quantity
            and (own := self.find_quantity(word)) is not None
            and own.name == suspect.quantity
        ]

    def _replace_constant(
        self, parameter: AssumedParameter, word_values: WordValues
    ) -> AssumedParameter:
        host_value = parameter.host_value
        is_number = parameter.kind == "constexpr" and type(parameter.value) is int
        words = set(self._iterate_words(host_value.expression)) if is_number else set()
        if host_value.kind == "constant" or not words or not words <= self.fixed_values.keys():
            return parameter
        return replace(parameter, value=self.evaluate(host_value.expression, word_values))

    def find_lines(self, access: IROperation) -> set[FileLine]:
        """Find the lines of an access and its address, which lead to few other accesses."""
        maker = self.case.access_graph.defining_operations.get(access.operands[0])
        return {each.source.line_key for each in (access, maker) if each is not None}

    # Arithmetic

    def find_overruns(self, word_values: WordValues) -> Iterator[Overrun]:
        """Find the accesses that may leave a tensor in this launch."""
        graph = self.case.access_graph
        ranges = IntegerRangeAnalysis(graph, self._make_launch_inputs(word_values))
        conditional = OverflowAnalysis(ranges)
        for access, conditions in graph.accesses:
            origin = graph.pointer_origins.get(access.operands[0])
            name = self.case.graph.parameters[origin].name if origin is not None else ""
            if name not in self.sizes:
                continue
            bounds = conditional.find_bounds(access, conditions)
            if bounds is None:
                continue
            get_range = RefinedRanges(ranges, bounds).get
            reach = self._find_index_range(access.operands[0], get_range)
            size = self.evaluate_size(name, word_values)
            if reach is not None and (reach.low < 0 or reach.high >= size):
                yield access, name

    def _make_launch_inputs(self, word_values: WordValues) -> LaunchInputs:
        parameters, contents = {}, {}
        for index, parameter in self.case.indexed_parameters:
            if parameter.is_pointer:
                contents[index] = make_exact_range(0)
            elif _is_integer(parameter):
                value = self.evaluate(parameter.expression, word_values)
                parameters[index] = make_exact_range(value)
        programs = tuple(
            IntegerRange(0, max(0, min(side, most) - 1))
            for side, most in zip(self.evaluate_grid(word_values), MAX_GRID, strict=True)
        )
        return LaunchInputs(parameters, programs, contents)

    def _find_index_range(self, pointer: IRValue, get_range: RangeGetter) -> IntegerRange | None:
        """Find the range of elements that an address may point to; None if it is unknown."""
        graph = self.case.access_graph
        base, offsets = graph.list_pointer_offsets(pointer)
        if base not in graph.parameter_indices:
            return None
        low = high = 0
        for offset, size in offsets:
            steps = get_range(offset)
            if steps.reasons or size != get_element_bytes(base):
                return None
            low, high = low + steps.low, high + steps.high
        return IntegerRange(low, high)


def _is_integer(parameter: AssumedParameter) -> bool:
    return parameter.kind != "i1" and parameter.kind[0] in "iu"
