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

from harness.audit.arguments import Parameter
from harness.audit.case import Case
from harness.audit.findings import Argument, Trial
from harness.audit.ranges import Ranges
from harness.kernels.graph import Value, bits_of
from harness.kernels.launched import meant, said

WRAPS, PASSES = "wraps", "passes"
_DRAWN = 40  # launches of tensors that hold different things, after those that hold alike
NARROW = 1 << 31  # elements, where nothing bounds an index: as many as one of 32 bits comes to
TYPES = {
    "i1": torch.bool, "u1": torch.bool, "i8": torch.int8, "u8": torch.uint8, "i16": torch.int16,
    "i32": torch.int32, "i64": torch.int64, "u32": torch.uint32, "u64": torch.uint64,
    "fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64,
    "fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2,
}  # fmt: skip
# What tensors of numbers hold: of the number of an element and the largest one.
_PATTERNS: dict[str, Callable[[int, int], int]] = {
    "the largest": lambda place, most: most,
    "zeros": lambda place, most: 0,
    "ones": lambda place, most: min(1, most),
    "nothing and the largest, in turn": lambda place, most: most * (place % 2),
    "the largest and nothing, in turn": lambda place, most: most * (1 - place % 2),
    # Where something begins and where it ends; so many parts, each as long.
    "half the largest and the largest, in turn": lambda place, most: most >> (1 - place % 2),
    "the root of the largest": lambda place, most: isqrt(most),
}
_USUAL = 5  # of them, which are tried first
# Of each axis of the grid: the first program, the last, the one before it, where a count ends it.
_CORNERS = ((1, 1, 1), (1, 0, 0), (2, 1, 1), (2, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0))
_SECOND, _MIDDLE = -1, -2
_EVERYWHERE = (1, 0, 2, _SECOND, _MIDDLE)  # of each axis
_BEFORE = (64, 16, 4, 3, 2, 1)  # so far before the one that wraps, as well


@dataclass(frozen=True, slots=True)
class Drawn:
    """One of the launches that are tried."""

    contents: dict[str, str]  # what each tensor of numbers holds
    corner: tuple[int, ...]  # which program runs: of each axis what `_at` makes of a number


def drawn(case: Case) -> Iterator[Drawn]:
    """Launches in which all tensors of numbers hold alike, then some in which they do not.

    What is seldom seen comes after both, alike and in one tensor alone.
    """
    names = [one.name for one in case.given if one.is_pointer and case.holds(one)]
    sides = case.world(case.largest(), False).programs
    wide = [int(side.high > 0) for side in sides]
    corners = [tuple(on * axis for on, axis in zip(one, wide, strict=True)) for one in _CORNERS]
    corners = list(dict.fromkeys(corners))
    usual, seldom = list(_PATTERNS)[:_USUAL], list(_PATTERNS)[_USUAL:]
    for pattern, corner in itertools.product(usual if names else [""], corners):
        yield Drawn(dict.fromkeys(names, pattern), corner)
    chance = random.Random(0)
    for _ in range(_DRAWN if len(names) > 1 else 0):
        contents = {name: chance.choice(usual) for name in names}
        yield Drawn(contents, chance.choice(corners))
    for pattern, corner in itertools.product(seldom if names else [], corners):
        yield Drawn(dict.fromkeys(names, pattern), corner)
    for name in names if len(names) > 1 else []:
        yield Drawn({**dict.fromkeys(names, usual[0]), name: seldom[-1]}, corners[0])


def trial(case: Case, draw: Drawn, at: Mapping[str, int]) -> Trial:
    """The launch at this load."""
    sides = [side.high + 1 for side in case.world(at, False).programs]
    program = place(sides, draw.corner)
    given = tuple(_argument(case, draw, one, at) for one in case.given)
    launch = Trial(tuple(sides), program, given)
    if not all(_whose(case, access.operands[0]) for access, _ in case.reading.accesses):
        return launch  # an access to any of them
    holding = tuple(one.name for one in given if one.holds)
    return _sized(launch, _ends(case, at, holding))


def _argument(case: Case, draw: Drawn, one: Parameter, at: Mapping[str, int]) -> Argument:
    if one.kind == "constexpr":
        return Argument(one.name, one.kind, said(one.value))
    if one.is_pointer:
        held = case.held(one, at)
        if held is None or TYPES[one.kind[1:]].is_floating_point:
            return Argument(one.name, one.kind)
        pattern = _PATTERNS[draw.contents[one.name]]
        return Argument(one.name, one.kind, holds=(pattern(0, held), pattern(1, held)))
    if one.kind in ("i1", "u1"):
        return Argument(one.name, one.kind, True)
    return Argument(one.name, one.kind, case.number(one, at) if one.kind[0] in "iu" else 1.0)


def _at(side: int, number: int) -> int:
    """Of an axis: its first program, one of the last, so many from the end, or one of these."""
    if number == _MIDDLE:
        return side // 2
    if number == _SECOND:
        return min(1, side - 1)
    return max(0, side - number) if number else 0


def place(sides: Sequence[int], corner: Sequence[int]) -> tuple[int, ...]:
    """The program that stands there."""
    return tuple(map(_at, sides, corner))


def corners(sides: Sequence[int], near: Sequence[int] = ()) -> list[tuple[int, ...]]:
    """Of programs all over a grid, as draws have them; those that mostly wrap come first.

    `near`: this one's, and then those before it as well.
    """
    found: dict[tuple[int, ...], tuple[int, ...]] = {}
    before = (
        (*near[:axis], near[axis] + step, *near[axis + 1 :])
        for step in _BEFORE
        for axis in range(len(near))
        if near[axis] > 0
    )
    for corner in (*itertools.product(_EVERYWHERE, repeat=len(sides)), *before):
        found.setdefault(place(sides, corner), corner)
    return list(found.values())


def around(launch: Trial) -> list[tuple[int, ...]]:
    """The program that was run, and some all over the grid."""
    found = (place(launch.grid, corner) for corner in corners(launch.grid))
    return list(dict.fromkeys((launch.program, *found)))


def given(launch: Trial, tensor: Callable[[Argument], torch.Tensor]) -> dict[str, Any]:
    """By parameter, what the kernel is called with."""
    return {
        one.name: tensor(one)
        if one.kind.startswith("*")
        else meant(one.value)
        if one.kind == "constexpr"
        else one.value
        for one in launch.arguments
    }


def fitting(number: int, kind: torch.dtype) -> int:
    """The number, or the one of this type that is nearest to it."""
    low, high = (0, 1) if kind == torch.bool else (torch.iinfo(kind).min, torch.iinfo(kind).max)
    return min(max(low, number), high)


def kept(case: Case, draw: Drawn, at: Mapping[str, int], quantity: str) -> tuple[Trial, ...]:
    """One below this load and at it, with tensors of their size; none where words fail."""
    loads = {**at, quantity: at[quantity] - 1}, at
    tensors = tuple(one.name for one in case.given if one.is_pointer)
    ends = [_ends(case, load, tensors) for load in loads]
    sizes = {name: max(one[name] for one in ends) for name in ends[0]}
    found = tuple(_sized(trial(case, draw, load), sizes) for load in loads)
    try:
        json.dumps([one.value for each in found for one in each.arguments])
    except TypeError:  # a function that is a constant
        return ()
    return found


def _sized(one: Trial, sizes: Mapping[str, int]) -> Trial:
    arguments = (replace(each, elements=sizes.get(each.name, 0)) for each in one.arguments)
    return replace(one, arguments=tuple(arguments))


def _ends(case: Case, at: Mapping[str, int], names: Sequence[str]) -> dict[str, int]:
    """How many elements of each tensor the whole launch may come to, whatever masks keep away."""
    ranges = case.ranges_at(at)
    ends = dict.fromkeys(names, 1)
    sizes = {one.name: TYPES[one.kind[1:]].itemsize for one in case.given if one.name in ends}
    for access, _ in case.reading.accesses:
        if _whose(case, access.operands[0]) in ends:
            name, end = _end(case, ranges, access.operands[0])
            ends[name] = max(ends[name], -(-end // sizes[name]))
    return ends


def _whose(case: Case, pointer: Value) -> str:
    origin = case.reading.origins.get(pointer)
    return "" if origin is None else case.graph.parameters[origin].name


def _end(case: Case, ranges: Ranges, pointer: Value) -> tuple[str, int]:
    """Whose memory it is, and behind which of its bytes an access there ends at the latest."""
    reading = case.reading
    pointer = reading.root(pointer)
    maker = reading.makers.get(pointer)
    size = max(1, bits_of(pointer.kind.pointee) // 8)
    if maker is None or maker.name != "tt.addptr":
        return _whose(case, pointer), size if pointer in reading.places else NARROW * size
    base, offset = maker.operands
    name, before = _end(case, ranges, base)
    far = ranges.get(offset)
    return name, before + max(0, min(far.high, NARROW) if far.why else far.high) * size
