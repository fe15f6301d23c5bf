"""Threads that wait for each other: warps, barriers, asynchronous copies, atomics, jump tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ptx_kernels import pack_parameters, read_compiled, run_text

from harness.sanitizer.violations.exceptions import UncheckableKernel

_, TEXT = read_compiled("waits")


def start_kernel(entry: str, parameters: bytes, tensors: dict[str, Any], **options: Any) -> None:
    run_text(TEXT, parameters, tensors, entry=entry, **{"block": (32, 1, 1), **options})


def source_lane(mode: str, lane: int, distance: int, width: int) -> int:
    """Return the lane that CUDA's documentation names for a shuffle within segments."""
    first = lane // width * width
    other = {
        "idx": first + (distance % width),
        "up": lane - distance,
        "down": lane + distance,
        "xor": lane ^ distance,
    }[mode]
    if mode == "up":
        return other if other >= first else lane
    return other if other < first + width else lane


@pytest.mark.parametrize("width", [32, 16, 8])
def test_operations_of_a_warp(width: int) -> None:
    values = np.random.default_rng(width).integers(-50, 50, 32, dtype=np.int32)
    out = np.zeros((32, 24), np.int32)
    start_kernel("warp_operations", pack_parameters(values, out, width), {"in": values, "out": out})
    lanes = range(32)
    unsigned = values.view(np.uint32)
    ballot = sum(1 << lane for lane in lanes if values[lane] > 0)
    columns = [
        [values[source_lane("idx", lane, lane * 7 + 3, width)] for lane in lanes],
        [values[source_lane("up", lane, 3, width)] for lane in lanes],
        [values[source_lane("down", lane, 5, width)] for lane in lanes],
        [values[source_lane("xor", lane, 6, width)] for lane in lanes],
        [np.uint32(ballot).view(np.int32)] * 32,
        [int((values == 77).any())] * 32,
        [1] * 32,
        [
            np.uint32(sum(1 << o for o in lanes if values[o] & 3 == values[lane] & 3)).view(
                np.int32
            )
            for lane in lanes
        ],
        [-1] * 32,
        [1] * 32,
        [values.sum()] * 32,
        [values.min()] * 32,
        [values.max()] * 32,
        [np.bitwise_and.reduce(unsigned).view(np.int32)] * 32,
        [np.bitwise_or.reduce(unsigned).view(np.int32)] * 32,
        [np.bitwise_xor.reduce(unsigned).view(np.int32)] * 32,
        [-1] * 32,
        [values[lane ^ 2] if lane % 2 else values[::2].sum() for lane in lanes],
        [int((values > 0).sum())] * 32,
        [int((values > 0).all())] * 32,
        [int((values > 40).any())] * 32,
    ]
    for place, column in enumerate(columns):
        truth = out[:, place] != 0 if place in (5, 6, 9, 19, 20) else out[:, place]
        assert truth.tolist() == [int(one) for one in column], place


def test_a_sum_over_a_block() -> None:
    values = np.random.default_rng(1).normal(size=(3, 256)).astype(np.float32)
    out = np.zeros(3, np.float32)
    tensors = {"in": values, "out": out}
    start_kernel(
        "block_sum", pack_parameters(values, out), tensors, grid=(3, 1, 1), block=(256, 1, 1)
    )
    assert np.allclose(out, values.sum(axis=1), rtol=1e-5)


def test_barriers_of_two_warps() -> None:
    out = np.zeros(32, np.int32)
    start_kernel("named_barriers", pack_parameters(out, 4), {"out": out}, block=(64, 1, 1))
    assert out.tolist() == [600 + 4 * (31 - lane) for lane in range(32)]


@pytest.mark.parametrize("count", [16, 8, 0])
def test_asynchronous_copies(count: int) -> None:
    values, out = np.arange(1, 129, dtype=np.int32), np.zeros(128, np.int32)
    start_kernel("copies_async", pack_parameters(values, out, count), {"in": values, "out": out})
    expected = values.reshape(32, 4).copy()
    expected[:, count // 4 :] = 0
    assert np.array_equal(out, expected.ravel()[::-1])


def test_bulk_copies_and_an_mbarrier() -> None:
    values, out = np.arange(768, dtype=np.int32), np.zeros((3, 256), np.int32)
    aligned = np.zeros(768 + 32, np.int32)
    place = -int(aligned.ctypes.data) % 128 // 4
    aligned[place : place + 768] = values
    source = aligned[place : place + 768]
    tensors = {"in": source, "out": out}
    start_kernel("copies_in_bulk", pack_parameters(source, out, 3), tensors, block=(64, 1, 1))
    assert all(np.array_equal(out[k], values.reshape(3, 256)[k][::-1] + k) for k in range(3))


def test_a_thread_that_waits_for_a_flag_lets_others_run() -> None:
    out = np.zeros(32, np.int32)
    start_kernel("spins", pack_parameters(out), {"out": out}, block=(64, 1, 1))
    assert out.tolist() == [42] * 32


def test_a_block_that_waits_for_a_later_one_is_refused() -> None:
    flag, out = np.zeros(1, np.int32), np.zeros(1, np.int32)
    with pytest.raises(UncheckableKernel, match="waits for another block"):
        start_kernel(
            "spins_on_block",
            pack_parameters(flag, out),
            {"flag": flag, "out": out},
            grid=(2, 1, 1),
            block=(1, 1, 1),
        )


def test_blocks_with_an_order_by_a_counter_do_not_race() -> None:
    values, parts = np.arange(5, dtype=np.int32) + 1, np.zeros(5, np.int32)
    counter, out = np.zeros(1, np.uint32), np.zeros(1, np.int32)
    tensors = {"in": values, "parts": parts, "counter": counter, "out": out}
    start_kernel(
        "last_block_sums", pack_parameters(values, parts, counter, out), tensors, grid=(5, 1, 1)
    )
    assert out[0] == 15


def test_atomic_updates() -> None:
    out, wrapped = np.zeros(16, np.int32), np.zeros(130, np.uint32)
    out[6] = -1
    sums, wide = np.zeros(1, np.float32), np.zeros(2, np.uint64)
    tensors = {"out": out, "wrapped": wrapped, "sums": sums, "wide": wide}
    start_kernel("atomics", pack_parameters(out, wrapped, sums, wide), tensors, block=(64, 1, 1))
    assert out[:7].tolist() == [2016, -64, -63, 63, -1, 0, ~127]
    assert out[7:9].tolist() == [64, 64]
    assert wrapped[0] == 64 % 6
    assert wrapped[2:66].tolist() == [k % 6 for k in range(64)]
    assert wrapped[66:130].tolist() == [(-k) % 6 for k in range(64)]
    assert sums[0] == 1008
    assert wide.tolist() == [64 << 33, 63 << 40]


def test_a_jump_table() -> None:
    values = (np.arange(32) % 8).astype(np.int32)
    out = np.full(32, 7, np.int32)
    start_kernel("jumps", pack_parameters(values, out), {"in": values, "out": out})

    def jump_result(lane: int) -> int:
        return [
            lambda: lane * 1,
            lambda: lane.bit_count() ^ 5,
            lambda: -7 * lane,
            lambda: lane // 3,
            lambda: int(values[31 - lane]),
            lambda: 8,
            lambda: 99,
            lambda: 99,
        ][lane % 8]()

    assert out.tolist() == [jump_result(lane) for lane in range(32)]
