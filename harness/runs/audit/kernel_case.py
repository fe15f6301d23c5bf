"""A kernel read with one set of parameters, for one launch, and its numbers at a given load.

Numbers of the host are expressions over the words of its code. The limits file ties a word to a
quantity such as `tokens`; a load has the size of each quantity. Example: `x.shape[0]` is tied to
`tokens`, so at the load `{"tokens": 524_289}` the grid `(x.shape[0],)` has 524,289 programs. An
unknown word may have any value: its range carries the reason.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.runs.audit.expressions import (
    Expression,
    evaluate_expression,
    has_several_symbols,
    iterate_symbols,
)
from harness.runs.audit.host_scope import HostLaunch
from harness.runs.audit.overflow_analysis import AddressOverflow, OverflowAnalysis
from harness.runs.audit.parameter_inference import (
    SOURCE_DESCRIPTIONS,
    SOURCE_RECORDED_LAUNCH,
    AssumedParameter,
)
from harness.runs.audit.range_analysis import (
    IntegerRangeAnalysis,
    LaunchInputs,
    find_division_by_zero,
)
from harness.runs.audit.size_limits import SizeLimits, SizeQuantity
from harness.sanitizer.ir.access_graph import AccessGraph
from harness.sanitizer.ir.graph import FileLine, IROperation, KernelGraph
from harness.sanitizer.ir.intervals import IntegerRange, make_exact_range, read_axis

Loads = Mapping[str, int]
MAX_GRID = (2**31 - 1, 65535, 65535)
_MAX_CACHED_ANALYSES = 400


class KernelCase:
    def __init__(
        self,
        graph: KernelGraph,
        parameters: list[AssumedParameter],
        launch: HostLaunch | None,
        limits: SizeLimits,
    ) -> None:
        self.graph, self.launch, self.limits = graph, launch, limits
        self.access_graph = AccessGraph(graph)
        if division := find_division_by_zero(self.access_graph):
            raise ValueError(f"line {division.source.line} divides by zero")
        self.parameters = parameters
        self.runtime_parameters = [each for each in parameters if each.kind != "constexpr"]
        self.constants = {each.name: each for each in parameters if each.kind == "constexpr"}
        self.parameters_by_name = {each.name: each for each in parameters}
        # The compiled constants of words without any other bound.
        self._compiled_values = {
            each.host_value.expression: each.value
            for each in self.constants.values()
            if each.host_value.kind == "unknown" and type(each.value) is int
        }
        self.program_names = {axis: self._find_program_name(axis) for axis in range(3)}
        self._analyses: dict[frozenset[tuple[str, int]], IntegerRangeAnalysis] = {}
        self.used_quantities = sorted(self._find_all_quantities())
        self.size_quantities = [
            name for name in self.used_quantities if limits.quantities[name].size
        ]
        indices = {value.name: index for index, value in enumerate(graph.parameters)}
        self.indexed_parameters = [
            (indices.get(each.name, order), each)
            for order, each in enumerate(self.runtime_parameters)
        ]

    def _find_program_name(self, axis: int) -> str:
        programs = (one for one in self.graph.walk() if one.name == "tt.get_program_id")
        return next((one.result.name for one in programs if read_axis(one) == axis), "")

    @property
    def is_recorded_launch(self) -> bool:
        return any(each.source == SOURCE_RECORDED_LAUNCH for each in self.parameters)

    @property
    def constant_descriptions(self) -> tuple[str, ...]:
        """The constants that the kernel is compiled with, and where each comes from."""
        return tuple(
            f"{each.name} = {each.value!r} ({SOURCE_DESCRIPTIONS.get(each.source, each.source)})"
            for each in self.constants.values()
        )

    # The host's numbers

    def _find_all_quantities(self) -> set[str]:
        names: set[str] = set()
        for parameter in self.runtime_parameters:
            if not parameter.is_pointer:
                names |= self.find_quantities(parameter.expression, parameter.name)
            elif quantity := self.find_content_quantity(parameter):
                names.add(quantity.name)
        for axis in range(3):
            names |= self.find_quantities(self.find_grid_side(axis), self.program_names[axis])
        return names

    def find_quantities(self, expression: Expression, name: str) -> set[str]:
        has_others = has_several_symbols(expression)
        symbols = iterate_symbols(expression)
        quantities = (self._find_quantity(symbol, name, has_others) for symbol in symbols)
        return {quantity.name for quantity in quantities if quantity is not None}

    def _find_quantity(self, word: str, name: str, has_others: bool) -> SizeQuantity | None:
        """Find a word's quantity, first by itself if its expression has others, then by name."""
        side_name = self.launch.side_names.get(word, "") if self.launch is not None else ""
        own = self.limits.find_quantity(word, side_name=side_name) if has_others else None
        return own or self.limits.find_quantity(
            word, *([name] if name else []), side_name=side_name
        )

    def find_grid_side(self, axis: int) -> Expression:
        grid = self.launch.grid if self.launch is not None else None
        if grid is not None:
            return grid[axis] if axis < len(grid) else 1
        return self.program_names[axis] or 1

    def evaluate(self, expression: Expression, name: str, loads: Loads) -> IntegerRange:
        unknown: set[str] = set()
        has_others = has_several_symbols(expression)

        def value_of(word: str) -> int:
            constant = self.constants.get(word.rpartition("META[")[2].strip("'\"]"))
            if constant is not None and isinstance(constant.value, int):
                return constant.value
            if word in self._compiled_values:
                return self._compiled_values[word]
            quantity = self._find_quantity(word, name, has_others)
            if quantity is None:
                unknown.add(word)
                return 1
            return loads.get(quantity.name, quantity.largest)

        value = evaluate_expression(expression, value_of)
        if unknown:
            reasons = frozenset(f"what {word} may be" for word in unknown)
            return IntegerRange(0, 2**31 - 1, reasons)
        return make_exact_range(value)

    def make_launch_inputs(self, loads: Loads, as_ranges: bool) -> LaunchInputs:
        """Make the inputs of one launch, or of all launches up to these loads (`as_ranges`)."""
        parameters: dict[int, IntegerRange] = {}
        contents: dict[int, IntegerRange] = {}
        for index, parameter in self.indexed_parameters:
            if parameter.is_pointer:
                largest = self.find_largest_content(parameter, loads)
                if largest is not None:
                    contents[index] = IntegerRange(0, largest)
            elif parameter.kind[0] == "i":
                value = self.evaluate(parameter.expression, parameter.name, loads)
                if as_ranges:
                    value = value._replace(low=min(1, value.high))
                parameters[index] = value
        return LaunchInputs(parameters, self.make_program_ranges(loads), contents, as_ranges)

    def make_program_ranges(self, loads: Loads) -> tuple[IntegerRange, ...]:
        sides = [
            self.evaluate(self.find_grid_side(axis), self.program_names[axis], loads)
            for axis in range(3)
        ]
        return tuple(
            IntegerRange(0, min(max(0, side.high - 1), most - 1), side.reasons)
            for side, most in zip(sides, MAX_GRID, strict=True)
        )

    def evaluate_parameter(self, parameter: AssumedParameter, loads: Loads) -> int:
        return self.evaluate(parameter.expression, parameter.name, loads).high

    def needs_int64(self, loads: Loads) -> bool:
        """Return whether a number read as int32 is so large that Triton would make it int64."""
        narrow = (each for each in self.runtime_parameters if each.kind == "i32")
        return any(self.evaluate_parameter(each, loads) >= 1 << 31 for each in narrow)

    def find_content_quantity(self, parameter: AssumedParameter) -> SizeQuantity | None:
        """Find the quantity that bounds the numbers in a tensor: page numbers, lengths, …"""
        known = self.limits.find_content(parameter.name, str(parameter.expression))
        return known[0] if known else None

    def find_largest_content(self, parameter: AssumedParameter, loads: Loads) -> int | None:
        quantity = self.find_content_quantity(parameter)
        return max(0, loads[quantity.name] - 1) if quantity else None

    def make_largest_loads(self) -> dict[str, int]:
        return {name: self.limits.quantities[name].largest for name in self.used_quantities}

    def make_usual_loads(self) -> dict[str, int]:
        return {name: self.limits.quantities[name].usual for name in self.used_quantities}

    # Overflows

    def analyze_all_launches(self, loads: Loads) -> OverflowAnalysis:
        """Analyze every launch up to these loads at once."""
        inputs = self.make_launch_inputs(loads, as_ranges=True)
        return OverflowAnalysis(IntegerRangeAnalysis(self.access_graph, inputs))

    def analyze_ranges(self, loads: Loads) -> IntegerRangeAnalysis:
        """Analyze one launch; cached, since each line of a kernel is searched at the same loads."""
        key = frozenset(loads.items())
        if key not in self._analyses:
            if len(self._analyses) >= _MAX_CACHED_ANALYSES:
                self._analyses.clear()
            inputs = self.make_launch_inputs(loads, as_ranges=False)
            self._analyses[key] = IntegerRangeAnalysis(self.access_graph, inputs)
        return self._analyses[key]

    def find_overflow_at(
        self, loads: Loads, line: FileLine, first_only: bool = False
    ) -> AddressOverflow | None:
        overflows = OverflowAnalysis(self.analyze_ranges(loads)).find_overflows(line, first_only)
        return next((overflow for overflow in overflows if overflow.is_known), None)

    def can_access_beyond(self, loads: Loads, byte_count: int) -> bool:
        """Return whether an access may go so many bytes from the start of its tensor."""
        ranges = self.analyze_ranges(loads)
        return any(
            self._find_farthest_byte(ranges, access) >= byte_count
            for access, _ in self.access_graph.accesses
        )

    def _find_farthest_byte(self, ranges: IntegerRangeAnalysis, access: IROperation) -> float:
        base, offsets = self.access_graph.list_pointer_offsets(access.operands[0])
        if base not in self.access_graph.parameter_indices:
            return float("inf")
        farthest = 0
        for offset, size in offsets:
            low, high, _ = ranges.get(offset)
            farthest += max(abs(low), abs(high)) * size
        return farthest
