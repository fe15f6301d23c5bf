"""The bytes that a launch accesses, as spans of addresses, with sets of such spans.

Example: every second element of eight floats at 64 is `AccessedBytes(64, 4, ((8, 4),))`, which has
the spans (64, 68), (72, 76), (80, 84) and (88, 92).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

Span = tuple[int, int]  # the address of the first byte, and the one behind the last byte
_MAX_SPANS = 4096


@dataclass(frozen=True, slots=True)
class AccessedBytes:
    """Runs of bytes, the first one at `start`, repeated at each step as often as its count says."""

    start: int
    run: int
    steps: tuple[tuple[int, int], ...] = ()  # bytes, and the count

    def list_spans(self) -> list[Span] | None:
        """List the spans, sorted; None if they are too many."""
        if math.prod(count for _, count in self.steps) > _MAX_SPANS:
            return None
        starts = [self.start]
        for step, count in self.steps:
            starts = [start + step * place for start in starts for place in range(count)]
        return merge_spans((start, start + self.run) for start in starts)


def find_element_bytes(tensor: torch.Tensor, start: int) -> AccessedBytes:
    """Return the bytes of a tensor's elements, the first of which is at `start`."""
    run = size = tensor.element_size()
    steps: list[tuple[int, int]] = []
    sides = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, count in sorted(side for side in sides if side[0] and side[1] > 1):
        if not steps and stride * size <= run:
            run += stride * size * (count - 1)
        else:
            steps.append((stride * size, count))
    return AccessedBytes(start, run, tuple(steps))


def merge_spans(spans: Iterable[Span]) -> list[Span]:
    """Sort spans; those that touch become one."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            start, last = merged.pop()
            end = max(end, last)
        merged.append((start, end))
    return merged


def intersect_spans(ours: list[Span], others: list[Span]) -> list[Span]:
    """Return what both have; each is sorted and without overlaps."""
    found = []
    place = other = 0
    while place < len(ours) and other < len(others):
        start = max(ours[place][0], others[other][0])
        end = min(ours[place][1], others[other][1])
        if start < end:
            found.append((start, end))
        if ours[place][1] < others[other][1]:
            place += 1
        else:
            other += 1
    return found


def subtract_spans(spans: list[Span], removed: list[Span]) -> list[Span]:
    """Return what is left of spans; each is sorted and without overlaps."""
    left = []
    for start, end in spans:
        for first, last in intersect_spans([(start, end)], removed):
            if start < first:
                left.append((start, first))
            start = last
        if start < end:
            left.append((start, end))
    return left
