"""Launches as data: the arguments, their memory, and the program that runs.

A trial follows from a load: integer tensors are filled with numbers that the limits file allows, in
one of a few patterns. So a finding can run again wherever the kernel's source is, without the
arithmetic of the audit. Example: at 4,096 pages a page table is filled with 4,095, with 0, or with
0 and 4,095 in turn; the program at the far corner of the grid runs, then others.
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

from harness.runs.audit.findings import LaunchArgument, TrialLaunch
from harness.runs.audit.kernel_case import KernelCase
from harness.runs.audit.parameter_inference import AssumedParameter
from harness.runs.audit.range_analysis import IntegerRangeAnalysis
from harness.sanitizer.ir.access_graph import get_element_bytes
from harness.sanitizer.ir.graph import IRValue
from harness.sanitizer.triton.recorded_launches import constant_from_json, constant_to_json

OVERFLOWS, PASSES = "overflows", "passes"
# Launches with a pattern for each integer tensor, after those with one pattern for all.
_MIXED_DRAWS = 40
INT32_ELEMENTS = 1 << 31  # the reach of an int32 index, for an index without a bound
TORCH_TYPES = {
    "i1": torch.bool, "u1": torch.bool, "i8": torch.int8, "u8": torch.uint8, "i16": torch.int16,
    "i32": torch.int32, "i64": torch.int64, "u32": torch.uint32, "u64": torch.uint64,
    "fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64,
    "fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2,
}  # fmt: skip
# The number at a position of an integer tensor, by the largest number that the tensor may have.
_CONTENT_PATTERNS: dict[str, Callable[[int, int], int]] = {
    "the largest": lambda position, most: most,
    "zeros": lambda position, most: 0,
    "ones": lambda position, most: min(1, most),
    "zero and the largest, in turn": lambda position, most: most * (position % 2),
    "the largest and zero, in turn": lambda position, most: most * (1 - position % 2),
    # The start and the end of a segment; the length of as many segments of one length.
    "half the largest and the largest, in turn": lambda position, most: most >> (1 - position % 2),
    "the root of the largest": lambda position, most: isqrt(most),
}
_COMMON_PATTERNS = list(_CONTENT_PATTERNS)[:5]  # tried first
_RARE_PATTERNS = list(_CONTENT_PATTERNS)[5:]
# Positions along an axis of the grid: `n` programs from the end, 0 for the first, or one of these.
_SECOND, _MIDDLE = -1, -2
_CORNERS = ((1, 1, 1), (1, 0, 0), (2, 1, 1), (2, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0))
_GRID_POSITIONS = (1, 0, 2, _SECOND, _MIDDLE)
_STEPS_BEFORE = (64, 16, 4, 3, 2, 1)  # programs before the one that overflows that run as well


@dataclass(frozen=True, slots=True)
class LaunchDraw:
    """One way to launch: a pattern for each integer tensor, and the program that runs."""

    contents: dict[str, str]
    corner: tuple[int, ...]  # a position along each axis


def iterate_draws(case: KernelCase) -> Iterator[LaunchDraw]:
    """Iterate draws: one common pattern for all tensors, mixed patterns, then rare patterns."""
    names = [
        each.name
        for each in case.parameters
        if each.is_pointer and case.find_content_quantity(each)
    ]
    axes = [int(side.high > 0) for side in case.make_program_ranges(case.make_largest_loads())]
    corners = list(
        dict.fromkeys(
            tuple(has_programs * end for has_programs, end in zip(axes, corner, strict=True))
            for corner in _CORNERS
        )
    )
    for pattern, corner in itertools.product(_COMMON_PATTERNS if names else [""], corners):
        yield LaunchDraw(dict.fromkeys(names, pattern), corner)
    chance = random.Random(0)
    for _ in range(_MIXED_DRAWS if len(names) > 1 else 0):
        contents = {name: chance.choice(_COMMON_PATTERNS) for name in names}
        yield LaunchDraw(contents, chance.choice(corners))
    for pattern, corner in itertools.product(_RARE_PATTERNS if names else [], corners):
        yield LaunchDraw(dict.fromkeys(names, pattern), corner)
    for name in names if len(names) > 1 else []:
        contents = {**dict.fromkeys(names, _COMMON_PATTERNS[0]), name: _RARE_PATTERNS[-1]}
        yield LaunchDraw(contents, corners[0])


def make_trial_launch(case: KernelCase, draw: LaunchDraw, loads: Mapping[str, int]) -> TrialLaunch:
    """Make the launch of a draw at these loads."""
    grid = tuple(side.high + 1 for side in case.make_program_ranges(loads))
    arguments = tuple(_make_argument(case, draw, each, loads) for each in case.parameters)
    launch = TrialLaunch(grid, find_program(grid, draw.corner), arguments)
    addresses = (access.operands[0] for access, _ in case.access_graph.accesses)
    if not all(_find_tensor_name(case, address) for address in addresses):
        return launch  # an access may go to any tensor
    patterned = tuple(argument.name for argument in arguments if argument.holds)
    return _set_element_counts(launch, _count_elements(case, loads, patterned))


def _make_argument(
    case: KernelCase, draw: LaunchDraw, parameter: AssumedParameter, loads: Mapping[str, int]
) -> LaunchArgument:
    name, kind = parameter.name, parameter.kind
    if kind == "constexpr":
        return LaunchArgument(name, kind, constant_to_json(parameter.value))
    if parameter.is_pointer:
        largest = case.find_largest_content(parameter, loads)
        if largest is None or TORCH_TYPES[kind[1:]].is_floating_point:
            return LaunchArgument(name, kind)
        pattern = _CONTENT_PATTERNS[draw.contents[name]]
        return LaunchArgument(name, kind, holds=(pattern(0, largest), pattern(1, largest)))
    if kind in ("i1", "u1"):
        return LaunchArgument(name, kind, True)
    is_integer = kind[0] in "iu"
    return LaunchArgument(
        name, kind, case.evaluate_parameter(parameter, loads) if is_integer else 1.0
    )


def _find_program_index(side: int, position: int) -> int:
    if position == _MIDDLE:
        return side // 2
    if position == _SECOND:
        return min(1, side - 1)
    return max(0, side - position) if position else 0


def find_program(grid: Sequence[int], corner: Sequence[int]) -> tuple[int, ...]:
    return tuple(map(_find_program_index, grid, corner))


def list_corners(grid: Sequence[int], near: Sequence[int] = ()) -> list[tuple[int, ...]]:
    """List corners all over a grid, one for each program; the most likely to overflow come first.

    Programs shortly before the one at `near` follow.
    """
    before = (
        (*near[:axis], near[axis] + step, *near[axis + 1 :])
        for step in _STEPS_BEFORE
        for axis in range(len(near))
        if near[axis] > 0
    )
    corners: dict[tuple[int, ...], tuple[int, ...]] = {}
    for corner in (*itertools.product(_GRID_POSITIONS, repeat=len(grid)), *before):
        corners.setdefault(find_program(grid, corner), corner)
    return list(corners.values())


def list_sample_programs(launch: TrialLaunch) -> list[tuple[int, ...]]:
    """List the program that was run, and some all over the grid."""
    others = (find_program(launch.grid, corner) for corner in list_corners(launch.grid))
    return list(dict.fromkeys((launch.program, *others)))


def make_call_arguments(
    launch: TrialLaunch, tensor_factory: Callable[[LaunchArgument], torch.Tensor]
) -> dict[str, Any]:
    """Make the arguments that the kernel is called with, by parameter."""

    def make_value(argument: LaunchArgument) -> Any:
        if argument.kind.startswith("*"):
            return tensor_factory(argument)
        is_constant = argument.kind == "constexpr"
        return constant_from_json(argument.value) if is_constant else argument.value

    return {argument.name: make_value(argument) for argument in launch.arguments}


def clamp_to_dtype(number: int, dtype: torch.dtype) -> int:
    low, high = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    return min(max(low, number), high)


def fill_tensors(tensors: Mapping[str, torch.Tensor], launch: TrialLaunch) -> None:
    """Fill the tensors of a launch with the numbers that it asks for, or with zeros."""
    for argument in launch.arguments:
        if not argument.kind.startswith("*"):
            continue
        tensor = tensors[argument.name]
        if argument.holds is None:
            tensor.view(torch.uint8).zero_()
            continue
        pair = [clamp_to_dtype(number, tensor.dtype) for number in argument.holds]
        # A pair on the host would be broadcast there to the size of the tensor before the copy.
        tensor.view(-1, 2).copy_(torch.tensor(pair, dtype=tensor.dtype, device=tensor.device))


def make_recorded_trials(
    case: KernelCase, draw: LaunchDraw, threshold_loads: Mapping[str, int], quantity: str
) -> tuple[TrialLaunch, ...]:
    """Make the launches one below the load and at it, with tensors of the size that both need.

    There are none if JSON does not hold a constant, such as a function.
    """
    loads = {**threshold_loads, quantity: threshold_loads[quantity] - 1}, threshold_loads
    tensors = tuple(each.name for each in case.parameters if each.is_pointer)
    counts = [_count_elements(case, each, tensors) for each in loads]
    largest = {name: max(each[name] for each in counts) for name in tensors}
    trials = tuple(
        _set_element_counts(make_trial_launch(case, draw, each), largest) for each in loads
    )
    try:
        json.dumps([argument.value for trial in trials for argument in trial.arguments])
    except TypeError:
        return ()
    return trials


def _set_element_counts(launch: TrialLaunch, counts: Mapping[str, int]) -> TrialLaunch:
    arguments = (replace(each, elements=counts.get(each.name, 0)) for each in launch.arguments)
    return replace(launch, arguments=tuple(arguments))


def _count_elements(
    case: KernelCase, loads: Mapping[str, int], names: Sequence[str]
) -> dict[str, int]:
    """Count the elements of each tensor that the whole launch may reach, with all masks true."""
    ranges = case.analyze_ranges(loads)
    counts = dict.fromkeys(names, 1)
    sizes = {
        each.name: TORCH_TYPES[each.kind[1:]].itemsize
        for each in case.parameters
        if each.name in counts
    }
    for access, _ in case.access_graph.accesses:
        if _find_tensor_name(case, access.operands[0]) in counts:
            name, end = _find_access_end(case, ranges, access.operands[0])
            counts[name] = max(counts[name], -(-end // sizes[name]))
    return counts


def _find_tensor_name(case: KernelCase, pointer: IRValue) -> str:
    origin = case.access_graph.pointer_origins.get(pointer)
    return "" if origin is None else case.graph.parameters[origin].name


def _find_access_end(
    case: KernelCase, ranges: IntegerRangeAnalysis, pointer: IRValue
) -> tuple[str, int]:
    """Find the tensor of an access, and how many bytes of it the access reaches at most."""
    base, offsets = case.access_graph.list_pointer_offsets(pointer)
    is_parameter = base in case.access_graph.parameter_indices
    end = get_element_bytes(base) * (1 if is_parameter else INT32_ELEMENTS)
    for offset, size in offsets:
        _, high, reasons = ranges.get(offset)
        end += max(0, min(high, INT32_ELEMENTS) if reasons else high) * size
    return _find_tensor_name(case, base), end
