"""A kernel as it is read one way for one launch, and what its host gives it at a load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.kernels.ir.graph import IROperation, IRValue, KernelGraph, bits_of
from harness.runs.audit.access_graph import AccessGraph
from harness.runs.audit.expressions import (
    Expression,
    evaluate_expression,
    has_several_symbols,
    iterate_symbols,
)
from harness.runs.audit.host_scope import HostLaunch
from harness.runs.audit.intervals import IntegerRange, make_exact_range
from harness.runs.audit.overflow_analysis import AddressOverflow, OverflowAnalysis
from harness.runs.audit.parameter_inference import (
    SOURCE_DESCRIPTIONS,
    SOURCE_RECORDED_LAUNCH,
    AssumedParameter,
)
from harness.runs.audit.range_analysis import (
    UNBOUNDED,
    IntegerRangeAnalysis,
    LaunchInputs,
    find_division_by_zero,
)
from harness.runs.audit.size_limits import SizeLimits, SizeQuantity

AXES = "xyz"
MAX_GRID = (2**31 - 1, 65535, 65535)
_MAX_CACHED_RANGES = 400  # whose ranges are kept at a time


@dataclass(frozen=True, slots=True)
class KernelLine:
    file: str
    line: int


class KernelCase:
    """A kernel read one way, for one launch."""

    def __init__(
        self,
        graph: KernelGraph,
        parameters: list[AssumedParameter],
        launch: HostLaunch | None,
        limits: SizeLimits,
    ) -> None:
        self.graph, self.launch, self.limits = graph, launch, limits
        self.access_graph = AccessGraph(graph)
        if one := find_division_by_zero(self.access_graph):
            raise ValueError(f"line {one.source.line} divides by zero")
        self.parameters = parameters
        self.runtime_parameters = [one for one in parameters if one.kind != "constexpr"]
        self.constants = {one.name: one for one in parameters if one.kind == "constexpr"}
        self.parameters_by_name = {one.name: one for one in parameters}
        self._compiled_values = {  # by a word that nobody says more of: what it is compiled with
            one.host_value.expression: one.value
            for one in self.constants.values()
            if one.host_value.kind == "unknown" and type(one.value) is int
        }
        self.program_names = {
            axis: next(
                (
                    one.result.name
                    for one in graph.walk()
                    if one.name == "tt.get_program_id" and AXES[axis] in read_axis(one)
                ),
                "",
            )
            for axis in range(3)
        }
        self._ranges: dict[frozenset[tuple[str, int]], IntegerRangeAnalysis] = {}
        self.used_quantities = sorted(self._find_all_quantities())
        self.size_quantities = [
            name for name in self.used_quantities if limits.quantities[name].size
        ]

    @property
    def is_recorded_launch(self) -> bool:
        return any(one.source == SOURCE_RECORDED_LAUNCH for one in self.parameters)

    @property
    def constant_descriptions(self) -> tuple[str, ...]:
        """The constants that it is read with, and who says so."""
        return tuple(
            f"{one.name} = {one.value!r} ({SOURCE_DESCRIPTIONS.get(one.source, one.source)})"
            for one in self.constants.values()
        )

    # The host's numbers

    def _find_all_quantities(self) -> set[str]:
        found: set[str] = set()
        for one in self.runtime_parameters:
            if one.is_pointer:
                held = self.limits.find_content(one.name, str(one.expression))
                if held and held[0]:
                    found.add(held[0].name)
                continue
            found |= self.find_quantities(one.expression, one.name)
        for axis in range(3):
            found |= self.find_quantities(self.find_grid_side(axis), self.program_names[axis])
        return found

    def find_quantities(self, expression: Expression, name: str) -> set[str]:
        many = has_several_symbols(expression)
        known = (self._find_quantity(one, name, many) for one in iterate_symbols(expression))
        return {one.name for one in known if one is not None}

    def _find_quantity(self, word: str, name: str, has_others: bool) -> SizeQuantity | None:
        """`many`: the name is that of an expression in which there are others."""
        called = self.launch.side_names.get(word, "") if self.launch is not None else ""
        own = self.limits.find_quantity(word, side_name=called) if has_others else None
        return own or self.limits.find_quantity(word, *([name] if name else []), side_name=called)

    def find_grid_side(self, axis: int) -> Expression:
        grid = self.launch.grid if self.launch is not None else None
        if grid is not None:
            return grid[axis] if axis < len(grid) else 1
        return self.program_names[axis] or 1

    def evaluate(self, expression: Expression, name: str, loads: Mapping[str, int]) -> IntegerRange:
        unknown: set[str] = set()
        many = has_several_symbols(expression)

        def value_of(word: str) -> int:
            constant = self.constants.get(word.rpartition("META[")[2].strip("'\"]"))
            if constant is not None and isinstance(constant.value, int):
                return constant.value
            if word in self._compiled_values:
                return self._compiled_values[word]
            quantity = self._find_quantity(word, name, many)
            if quantity is None:
                unknown.add(word)
                return 1
            return loads.get(quantity.name, quantity.largest)

        value = evaluate_expression(expression, value_of)
        if unknown:
            why = frozenset(f"what {one} may be" for one in unknown)
            return IntegerRange(0, 2**31 - 1, why)
        return make_exact_range(value)

    def make_launch_inputs(self, loads: Mapping[str, int], as_ranges: bool) -> LaunchInputs:
        parameters: dict[int, IntegerRange] = {}
        contents: dict[int, IntegerRange] = {}
        places = {value.name: place for place, value in enumerate(self.graph.parameters)}
        for order, one in enumerate(self.runtime_parameters):
            place = places.get(one.name, order)
            if one.is_pointer:
                most = self.find_largest_content(one, loads)
                if most is not None:
                    contents[place] = IntegerRange(0, most)
                continue
            if one.kind[0] != "i":
                continue
            value = self.evaluate(one.expression, one.name, loads)
            parameters[place] = (
                IntegerRange(min(1, value.high), value.high, value.reasons) if as_ranges else value
            )
        sides = []
        for axis in range(3):
            side = self.evaluate(self.find_grid_side(axis), self.program_names[axis], loads)
            high = min(max(0, side.high - 1), MAX_GRID[axis] - 1)
            sides.append(IntegerRange(0, high, side.reasons))
        return LaunchInputs(parameters, (sides[0], sides[1], sides[2]), contents, as_ranges)

    def evaluate_parameter(self, parameter: AssumedParameter, loads: Mapping[str, int]) -> int:
        return self.evaluate(parameter.expression, parameter.name, loads).high

    def is_read_too_narrow(self, loads: Mapping[str, int]) -> bool:
        """Whether Triton would read it otherwise there: it gives 64 bits to what takes them."""
        narrow = (one for one in self.runtime_parameters if one.kind == "i32")
        return any(self.evaluate_parameter(one, loads) >= 1 << 31 for one in narrow)

    def find_content_quantity(self, parameter: AssumedParameter) -> SizeQuantity | None:
        """What the numbers of a tensor are."""
        known = self.limits.find_content(parameter.name, str(parameter.expression))
        return known[0] if known else None

    def find_largest_content(
        self, parameter: AssumedParameter, loads: Mapping[str, int]
    ) -> int | None:
        """The largest number that a tensor holds."""
        quantity = self.find_content_quantity(parameter)
        return max(0, loads[quantity.name] - 1) if quantity else None

    def make_largest_loads(self) -> dict[str, int]:
        return {name: self.limits.quantities[name].largest for name in self.used_quantities}

    def make_usual_loads(self) -> dict[str, int]:
        return {name: self.limits.quantities[name].usual for name in self.used_quantities}

    def find_overflows(
        self, loads: Mapping[str, int], as_ranges: bool = False
    ) -> list[AddressOverflow]:
        return list(
            OverflowAnalysis(
                IntegerRangeAnalysis(self.access_graph, self.make_launch_inputs(loads, as_ranges))
            ).find_overflows(first_only=False)
        )

    def analyze_ranges(self, loads: Mapping[str, int]) -> IntegerRangeAnalysis:
        """One line after the other is asked at the same loads."""
        key = frozenset(loads.items())
        if key not in self._ranges:
            if len(self._ranges) >= _MAX_CACHED_RANGES:
                self._ranges.clear()
            self._ranges[key] = IntegerRangeAnalysis(
                self.access_graph, self.make_launch_inputs(loads, False)
            )
        return self._ranges[key]

    def find_overflow_at(
        self, loads: Mapping[str, int], kernel_line: KernelLine, first_only: bool = False
    ) -> AddressOverflow | None:
        wraps = OverflowAnalysis(self.analyze_ranges(loads))
        return next(
            (
                one
                for one in wraps.find_overflows((kernel_line.file, kernel_line.line), first_only)
                if one.is_known
            ),
            None,
        )

    def can_access_beyond(self, loads: Mapping[str, int], byte_count: int) -> bool:
        """Whether an access may go so many bytes from where its tensor begins."""
        ranges = self.analyze_ranges(loads)
        accesses = (access.operands[0] for access, _ in self.access_graph.accesses)
        return any(self._find_farthest_byte(ranges, one) >= byte_count for one in accesses)

    def _find_farthest_byte(self, ranges: IntegerRangeAnalysis, pointer: IRValue) -> int:
        pointer = self.access_graph.find_root(pointer)
        maker = self.access_graph.defining_operations.get(pointer)
        if maker is None or maker.name != "tt.addptr":
            return 0 if pointer in self.access_graph.parameter_indices else UNBOUNDED
        base, offset = maker.operands
        far = ranges.get(offset)
        size = max(1, bits_of(pointer.type.pointee) // 8)
        return self._find_farthest_byte(ranges, base) + max(abs(far.low), abs(far.high)) * size

    def find_first_overflows(self, loads: Mapping[str, int]) -> set[KernelLine]:
        """Where something wraps that is made of nothing that has."""
        wraps = OverflowAnalysis(
            IntegerRangeAnalysis(self.access_graph, self.make_launch_inputs(loads, True))
        ).find_overflows()
        return {find_kernel_line(one.operation) for one in wraps}


def find_kernel_line(operation: IROperation) -> KernelLine:
    return KernelLine(operation.source.file, operation.source.line)


def read_axis(operation: IROperation) -> str:
    text = operation.attributes.get("axis", "0").split(":")[0].strip()
    return AXES[int(text)] if text.isdigit() else text
