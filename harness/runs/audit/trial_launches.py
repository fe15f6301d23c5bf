"""One launch as data: what each parameter is given, how much memory that takes, which program runs.

Tensors of numbers hold what the limits file says at that load, in one of a few patterns. So a
finding can be run again wherever its kernel's source is, with nothing of the audit's arithmetic.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any

import torch

from harness.kernels.ir.graph import IRValue, bits_of
from harness.kernels.triton.recorded_launches import constant_from_json, constant_to_json
from harness.runs.audit.findings import LaunchArgument, TrialLaunch
from harness.runs.audit.kernel_case import KernelCase
from harness.runs.audit.parameter_inference import AssumedParameter
from harness.runs.audit.range_analysis import IntegerRangeAnalysis

OVERFLOWS, PASSES = "wraps", "passes"
_MIXED_DRAWS = 40  # launches of tensors that hold different things, after those that hold alike
INT32_ELEMENTS = (
    1 << 31
)  # elements, where nothing bounds an index: as many as one of 32 bits comes to
TORCH_TYPES = {
    "i1": torch.bool, "u1": torch.bool, "i8": torch.int8, "u8": torch.uint8, "i16": torch.int16,
    "i32": torch.int32, "i64": torch.int64, "u32": torch.uint32, "u64": torch.uint64,
    "fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64,
    "fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2,
}  # fmt: skip
# What tensors of numbers hold: of the number of an element and the largest one.
_CONTENT_PATTERNS: dict[str, Callable[[int, int], int]] = {
    "the largest": lambda place, most: most,
    "zeros": lambda place, most: 0,
    "ones": lambda place, most: min(1, most),
    "nothing and the largest, in turn": lambda place, most: most * (place % 2),
    "the largest and nothing, in turn": lambda place, most: most * (1 - place % 2),
    # Where something begins and where it ends; so many parts, each as long.
    "half the largest and the largest, in turn": lambda place, most: most >> (1 - place % 2),
    "the root of the largest": lambda place, most: isqrt(most),
}
_USUAL_PATTERNS = 5  # of them, which are tried first
# Of each axis of the grid: the first program, the last, the one before it, where a count ends it.
_CORNERS = ((1, 1, 1), (1, 0, 0), (2, 1, 1), (2, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0))
_SECOND, _MIDDLE = -1, -2
_GRID_POSITIONS = (1, 0, 2, _SECOND, _MIDDLE)  # of each axis
_STEPS_BEFORE = (64, 16, 4, 3, 2, 1)  # so far before the one that wraps, as well


@dataclass(frozen=True, slots=True)
class LaunchDraw:
    """One of the launches that are tried."""

    contents: dict[str, str]  # what each tensor of numbers holds
    corner: tuple[int, ...]  # which program runs: of each axis what `_at` makes of a number


def iterate_draws(case: KernelCase) -> Iterator[LaunchDraw]:
    """Launches in which all tensors of numbers hold alike, then some in which they do not.

    What is seldom seen comes after both, alike and in one tensor alone.
    """
    names = [
        one.name for one in case.parameters if one.is_pointer and case.find_content_quantity(one)
    ]
    sides = case.make_launch_inputs(case.make_largest_loads(), False).programs
    wide = [int(side.high > 0) for side in sides]
    corners = [tuple(on * axis for on, axis in zip(one, wide, strict=True)) for one in _CORNERS]
    corners = list(dict.fromkeys(corners))
    usual, seldom = (
        list(_CONTENT_PATTERNS)[:_USUAL_PATTERNS],
        list(_CONTENT_PATTERNS)[_USUAL_PATTERNS:],
    )
    for pattern, corner in itertools.product(usual if names else [""], corners):
        yield LaunchDraw(dict.fromkeys(names, pattern), corner)
    chance = random.Random(0)
    for _ in range(_MIXED_DRAWS if len(names) > 1 else 0):
        contents = {name: chance.choice(usual) for name in names}
        yield LaunchDraw(contents, chance.choice(corners))
    for pattern, corner in itertools.product(seldom if names else [], corners):
        yield LaunchDraw(dict.fromkeys(names, pattern), corner)
    for name in names if len(names) > 1 else []:
        yield LaunchDraw({**dict.fromkeys(names, usual[0]), name: seldom[-1]}, corners[0])


def make_trial_launch(case: KernelCase, draw: LaunchDraw, loads: Mapping[str, int]) -> TrialLaunch:
    """The launch at this load."""
    sides = [side.high + 1 for side in case.make_launch_inputs(loads, False).programs]
    program = find_program(sides, draw.corner)
    given = tuple(_make_argument(case, draw, one, loads) for one in case.parameters)
    launch = TrialLaunch(tuple(sides), program, given)
    if not all(
        _find_tensor_name(case, access.operands[0]) for access, _ in case.access_graph.accesses
    ):
        return launch  # an access to any of them
    holding = tuple(one.name for one in given if one.holds)
    return _set_element_counts(launch, _count_elements(case, loads, holding))


def _make_argument(
    case: KernelCase, draw: LaunchDraw, parameter: AssumedParameter, loads: Mapping[str, int]
) -> LaunchArgument:
    if parameter.kind == "constexpr":
        return LaunchArgument(parameter.name, parameter.kind, constant_to_json(parameter.value))
    if parameter.is_pointer:
        held = case.find_largest_content(parameter, loads)
        if held is None or TORCH_TYPES[parameter.kind[1:]].is_floating_point:
            return LaunchArgument(parameter.name, parameter.kind)
        pattern = _CONTENT_PATTERNS[draw.contents[parameter.name]]
        return LaunchArgument(
            parameter.name, parameter.kind, holds=(pattern(0, held), pattern(1, held))
        )
    if parameter.kind in ("i1", "u1"):
        return LaunchArgument(parameter.name, parameter.kind, True)
    return LaunchArgument(
        parameter.name,
        parameter.kind,
        case.evaluate_parameter(parameter, loads) if parameter.kind[0] in "iu" else 1.0,
    )


def _find_program_index(side: int, position: int) -> int:
    """Of an axis: its first program, one of the last, so many from the end, or one of these."""
    if position == _MIDDLE:
        return side // 2
    if position == _SECOND:
        return min(1, side - 1)
    return max(0, side - position) if position else 0


def find_program(sides: Sequence[int], corner: Sequence[int]) -> tuple[int, ...]:
    """The program that stands there."""
    return tuple(map(_find_program_index, sides, corner))


def list_corners(sides: Sequence[int], near: Sequence[int] = ()) -> list[tuple[int, ...]]:
    """Of programs all over a grid, as draws have them; those that mostly wrap come first.

    `near`: this one's, and then those before it as well.
    """
    found: dict[tuple[int, ...], tuple[int, ...]] = {}
    before = (
        (*near[:axis], near[axis] + step, *near[axis + 1 :])
        for step in _STEPS_BEFORE
        for axis in range(len(near))
        if near[axis] > 0
    )
    for corner in (*itertools.product(_GRID_POSITIONS, repeat=len(sides)), *before):
        found.setdefault(find_program(sides, corner), corner)
    return list(found.values())


def list_sample_programs(launch: TrialLaunch) -> list[tuple[int, ...]]:
    """The program that was run, and some all over the grid."""
    found = (find_program(launch.grid, corner) for corner in list_corners(launch.grid))
    return list(dict.fromkeys((launch.program, *found)))


def make_call_arguments(
    launch: TrialLaunch, tensor_factory: Callable[[LaunchArgument], torch.Tensor]
) -> dict[str, Any]:
    """By parameter, what the kernel is called with."""
    return {
        one.name: tensor_factory(one)
        if one.kind.startswith("*")
        else constant_from_json(one.value)
        if one.kind == "constexpr"
        else one.value
        for one in launch.arguments
    }


def clamp_to_dtype(number: int, dtype: torch.dtype) -> int:
    """The number, or the one of this type that is nearest to it."""
    low, high = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    return min(max(low, number), high)


def make_recorded_trials(
    case: KernelCase, draw: LaunchDraw, threshold_loads: Mapping[str, int], quantity: str
) -> tuple[TrialLaunch, ...]:
    """One below this load and at it, with tensors of their size; none where words fail."""
    loads = {**threshold_loads, quantity: threshold_loads[quantity] - 1}, threshold_loads
    tensors = tuple(one.name for one in case.parameters if one.is_pointer)
    ends = [_count_elements(case, load, tensors) for load in loads]
    sizes = {name: max(one[name] for one in ends) for name in ends[0]}
    found = tuple(_set_element_counts(make_trial_launch(case, draw, load), sizes) for load in loads)
    try:
        json.dumps([one.value for each in found for one in each.arguments])
    except TypeError:  # a function that is a constant
        return ()
    return found


def _set_element_counts(launch: TrialLaunch, sizes: Mapping[str, int]) -> TrialLaunch:
    arguments = (replace(each, elements=sizes.get(each.name, 0)) for each in launch.arguments)
    return replace(launch, arguments=tuple(arguments))


def _count_elements(
    case: KernelCase, loads: Mapping[str, int], names: Sequence[str]
) -> dict[str, int]:
    """How many elements of each tensor the whole launch may come to, whatever masks keep away."""
    ranges = case.analyze_ranges(loads)
    ends = dict.fromkeys(names, 1)
    sizes = {
        one.name: TORCH_TYPES[one.kind[1:]].itemsize for one in case.parameters if one.name in ends
    }
    for access, _ in case.access_graph.accesses:
        if _find_tensor_name(case, access.operands[0]) in ends:
            name, end = _find_access_end(case, ranges, access.operands[0])
            ends[name] = max(ends[name], -(-end // sizes[name]))
    return ends


def _find_tensor_name(case: KernelCase, pointer: IRValue) -> str:
    origin = case.access_graph.pointer_origins.get(pointer)
    return "" if origin is None else case.graph.parameters[origin].name


def _find_access_end(
    case: KernelCase, ranges: IntegerRangeAnalysis, pointer: IRValue
) -> tuple[str, int]:
    """Whose memory it is, and behind which of its bytes an access there ends at the latest."""
    reading = case.access_graph
    pointer = reading.find_root(pointer)
    maker = reading.defining_operations.get(pointer)
    size = max(1, bits_of(pointer.type.pointee) // 8)
    if maker is None or maker.name != "tt.addptr":
        return _find_tensor_name(
            case, pointer
        ), size if pointer in reading.parameter_indices else INT32_ELEMENTS * size
    base, offset = maker.operands
    name, before = _find_access_end(case, ranges, base)
    far = ranges.get(offset)
    return name, before + max(0, min(far.high, INT32_ELEMENTS) if far.reasons else far.high) * size
