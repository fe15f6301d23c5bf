"""Kernels that write tiles anywhere, and the violations of a launch, computed lane by lane."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from hypothesis import strategies as st

ROWS, WIDTH, AROUND = 4, 32, 40
INT32 = 1 << 31


@triton.jit
def tile(target, rows, width, stride, shift, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    row, lane = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    on = (row < rows)[:, None] & (lane < width)[None, :]
    at = row[:, None] * stride + lane[None, :] + shift
    tl.store(target + at, 1, mask=on)


@triton.jit
def tile_at(target, rows, width, stride, shift, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    row, lane = tl.arange(0, ROWS)[:, None], tl.arange(0, WIDTH)[None, :]
    at = row * stride + (lane + shift)
    tl.store(target + at, 1, mask=(width > lane) & (row <= rows - 1))


@triton.jit
def turns(target, rows, width, stride, shift, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    lane = tl.arange(0, WIDTH)
    at = target + shift + lane
    for _ in range(rows):
        tl.store(at, 1, mask=lane <= width - 1)
        at += stride


@triton.jit
def rows_of_turns(target, rows, width, stride, shift, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    row, lane = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    at = target + row[:, None] * stride + lane[None, :] + shift
    for turn in range(0, width, 8):
        tl.store(at, 1, mask=(lane[None, :] < min(width - turn, 8)) & (row[:, None] < rows))
        at += 8


@dataclass(frozen=True)
class Tile:
    rows: int
    width: int
    stride: int
    shift: int

    @property
    def arguments(self) -> tuple[int, ...]:
        return self.rows, self.width, self.stride, self.shift

    @property
    def reached(self) -> set[int]:
        return {row * self.stride + lane + self.shift for row, lane in self._lanes()}

    def wraps(self, kernel: Any) -> bool:
        return any(
            not -INT32 <= number < INT32
            for at in self._lanes()
            for number in self._sums(kernel, *at)
        )

    def _lanes(self) -> list[tuple[int, int]]:
        return [(row, lane) for row in range(self.rows) for lane in range(self.width)]

    def _sums(self, kernel: Any, row: int, lane: int) -> list[int]:
        """Return the 32-bit sums on the way to an address."""
        product = row * self.stride
        return {
            tile: [product, product + lane, product + lane + self.shift],
            tile_at: [product, lane + self.shift, product + lane + self.shift],
            turns: [],
            rows_of_turns: [product],
        }[kernel]


KERNELS = tile, tile_at, turns, rows_of_turns
TILES = st.builds(
    Tile,
    rows=st.integers(0, ROWS),
    width=st.integers(0, WIDTH),
    stride=st.integers(-40, 40) | st.integers(-INT32, INT32 - 1),
    shift=st.integers(-40, 140) | st.integers(INT32 - 200, INT32 - 1) | st.integers(-INT32, 0),
)
