"""Checked kernels on a GPU: bounds, overflow, access rules, uninitialized memory, a lost device."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings

from harness import checking
from harness.checking import (
    AccessRuleViolation,
    IntegerOverflow,
    OutOfBounds,
    UninitializedMemory,
    Violation,
)
from harness.core import paths
from harness.sanitizer.gpu import compiler_hooks

FOLDERS = [Path(__file__).parents[1] / name for name in ("checked", "compiled")]
sys.path[:0] = map(str, FOLDERS)
import kernels_to_check as known  # noqa: E402
import tiles  # noqa: E402
from test_instrumentation import by_step, product, reset  # noqa: E402

pytestmark = pytest.mark.needs_cuda


@triton.jit
def copy(source, target, count, shift, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(source + at, mask=at < count)
    tl.store(target + at + shift, value, mask=at < count)


def check_on_gpu() -> Any:
    return checking.checked("cuda")


def make_numbers(count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.int32, device="cuda")


def wrap_to_int32(number: int) -> int:
    return (number + 2**31) % 2**32 - 2**31


def test_a_right_kernel_leaves_its_result_where_it_belongs() -> None:
    both = torch.zeros(48, dtype=torch.int32, device="cuda")
    with check_on_gpu() as session:
        copy[(3,)](make_numbers(24), both[:24], 24, 0, BLOCK=8)
        assert [(launch.kernel, launch.grid) for launch in session.launches] == [
            ("copy", (3, 1, 1))
        ]
    assert both.tolist() == [*range(24), *[0] * 24]


@pytest.mark.parametrize(
    ("shift", "words"),
    [(4, "4 bytes past the end of target"), (-4, "16 bytes before the start of target")],
)
def test_a_write_out_of_bounds_is_reported_and_masked_off(shift: int, words: str) -> None:
    both = torch.zeros(72, dtype=torch.int32, device="cuda")
    with pytest.raises(OutOfBounds, match=f"copy wrote {words}") as caught, check_on_gpu():
        copy[(3,)](make_numbers(24) + 1, both[24:48], 24, shift, BLOCK=8)
    assert "tl.store(target + at + shift" in str(caught.value)
    assert "launched with source int32 [24], target int32 [24], count 24" in str(caught.value)
    assert not both[:24].any()
    assert not both[48:].any()


def test_one_compilation_serves_all_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    before = compiler_hooks.instrument_module

    def count_compilation(*args: Any) -> Any:
        compiled.append(args[-1])
        return before(*args)

    monkeypatch.setattr(compiler_hooks, "instrument_module", count_compilation)
    monkeypatch.setenv("TRITON_CACHE_DIR", tempfile.mkdtemp())
    for stride, width in [(9, 5), (5, 5), (11, 2), (64, 8), (1000, 7)]:
        source, target = make_numbers(4 * stride), make_numbers(4 * width)
        with check_on_gpu():
            known.by_rows[(4,)](source, target, stride, width, BLOCK=8)
        assert target.view(4, width).tolist() == source.view(4, stride)[:, :width].tolist()
    assert len(compiled) == 1
    with pytest.raises(OutOfBounds, match="by_rows read 4 bytes past") as caught, check_on_gpu():
        known.by_rows[(4,)](make_numbers(3 * 21 + 6), make_numbers(28), 21, 7, BLOCK=8)
    assert "stride 21, width 7" in str(caught.value)
    assert len(compiled) == 1


def test_vectors_of_lanes_are_checked_lane_by_lane() -> None:
    """Where one instruction moves eight lanes, the last may be outside alone."""
    target = torch.zeros(4096, dtype=torch.float16, device="cuda")
    with (
        pytest.raises(OutOfBounds, match=r"its index 1023, and it is float16 \[1023\]"),
        check_on_gpu(),
    ):
        copy[(1,)](torch.ones_like(target), target[:1023], 1024, 0, BLOCK=1024)


@pytest.mark.parametrize("kernel", tiles.KERNELS)
@settings(deadline=None, max_examples=60)
@given(tile=tiles.TILES)
def test_a_tile_is_refused_where_a_lane_of_it_is(kernel: Any, tile: tiles.Tile) -> None:
    around, size = tiles.AROUND, tiles.ROWS * tiles.WIDTH
    memory = torch.zeros(around + size + around, dtype=torch.int32, device="cuda")
    target = memory[around:-around]
    outside = any(not 0 <= at < size for at in tile.reached)
    is_so = {IntegerOverflow: tile.wraps(kernel), OutOfBounds: outside}
    wrong = tuple(kind for kind in is_so if is_so[kind])  # of several programs, any one's first
    with pytest.raises(wrong) if wrong else contextlib.nullcontext(), check_on_gpu():
        kernel[(1,)](target, *tile.arguments, ROWS=tiles.ROWS, WIDTH=tiles.WIDTH)
    assert not memory[:around].any()
    assert not memory[-around:].any()
    if not wrong:
        assert set(target.nonzero().flatten().tolist()) == tile.reached


def test_masked_lanes_may_point_anywhere() -> None:
    with check_on_gpu():
        copy[(100,)](make_numbers(24), make_numbers(24), 24, 0, BLOCK=8)
        known.masked_product[(1,)](make_numbers(4), 3, 2**30)


@pytest.mark.parametrize(
    ("kernel", "row", "stride", "wraps"),
    [
        (known.at_product, 3, 2**30, True),
        (known.at_product, 2**16, 2**16, True),
        (known.wide_product, 3, 0, False),
        (known.value_overflows, 3, 2**30, False),
    ],
)
def test_overflow_is_reported_where_it_reaches_an_address(
    kernel: Any, row: int, stride: int, wraps: bool
) -> None:
    if not wraps:
        with check_on_gpu():
            kernel[(1,)](make_numbers(4), row, stride)
        return
    with (
        pytest.raises(
            IntegerOverflow, match=r"an integer overflows on its way into an address"
        ) as caught,
        check_on_gpu(),
    ):
        kernel[(1,)](make_numbers(4), row, stride)
    assert f"{row} * {stride} became {wrap_to_int32(row * stride)}: more than int32 holds" in str(
        caught.value
    )
    assert "kernels_to_check.py:" in str(caught.value)


def test_overflow_of_64_bits_is_reported_with_its_operands() -> None:
    with pytest.raises(IntegerOverflow) as caught, check_on_gpu():
        known.at_product[(1,)](make_numbers(4), 3 << 40, 3 << 40)
    assert "3298534883328 * 3298534883328 became 0: more than int64 holds" in str(caught.value)


def test_a_pointer_from_a_table_is_checked_against_its_storage() -> None:
    """Each pool is a storage of its own, all of them in one segment of the allocator."""
    with check_on_gpu() as session:
        pools = [make_numbers(128) + 1000 * pool for pool in range(3)]
        table = torch.tensor([pool.data_ptr() for pool in pools], device="cuda")
        target = make_numbers(8)
        known.copied_from_table[(1,)](table, target, 128, 1)
        assert target.tolist() == list(range(1120, 1128))
        with pytest.raises(OutOfBounds, match=r"past the end of .* whose address it loaded \(its"):
            known.copied_from_table[(1,)](table, target, 136, 1)
        session.discard_errors()


def test_a_pool_that_is_made_again_is_known_by_its_new_ends() -> None:
    with check_on_gpu():
        for count in (128, 8192, 1024):
            pool = make_numbers(count)
            table = torch.tensor([pool.data_ptr()], device="cuda")
            known.copied_from_table[(1,)](table, make_numbers(8), count, 0)
            del pool


@pytest.mark.parametrize(("which", "words"), [(6, "first"), (5, "second")])
def test_a_pointer_of_several_arguments_is_checked_against_the_one_chosen(
    which: int, words: str
) -> None:
    with pytest.raises(OutOfBounds, match=f"read .* past the end of {words} "), check_on_gpu():
        known.one_of_two[(1,)](make_numbers(4), make_numbers(8), make_numbers(1), which, 20)


@pytest.mark.parametrize(
    ("stride", "words"), [(1, None), (2**26, "overflows"), (2**20, "past the end")]
)
def test_overflow_in_a_loop_is_reported_in_the_iteration_that_uses_it(
    stride: int, words: str | None
) -> None:
    arguments = make_numbers(64 * 8), torch.zeros(64, dtype=torch.int32, device="cuda"), 3, stride
    if words is None:
        with check_on_gpu():
            by_step[(1,)](*arguments, BLOCK=64)
        return
    with pytest.raises(Violation, match=words), check_on_gpu():
        by_step[(1,)](*arguments, BLOCK=64)


def test_overflow_of_one_iteration_is_none_of_the_next() -> None:
    with check_on_gpu():
        reset[(1,)](
            make_numbers(64), torch.zeros(64, dtype=torch.int32, device="cuda"), 5, 2**30, BLOCK=64
        )


def test_loads_that_run_ahead_of_their_loop_are_not_reported() -> None:
    """Triton starts a loop's loads iterations ahead, also for iterations that never run."""
    left, right = (torch.ones((64, 64), dtype=torch.float16, device="cuda") for _ in range(2))
    out = torch.empty_like(left)
    with check_on_gpu():
        product[(1,)](left, right, out, 64, BLOCK=64)
    assert out[0, 0] == 64
    with pytest.raises(OutOfBounds, match="product read"), check_on_gpu():
        product[(1,)](left, right, out, 128, BLOCK=64)


def test_each_replay_of_a_graph_is_checked() -> None:
    source, target = make_numbers(24), make_numbers(24)
    with check_on_gpu() as session:
        copy[(3,)](source, target, 24, 0, BLOCK=8)  # compiled before the capture
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            copy[(3,)](source, target, 24, 1, BLOCK=8)
        for _ in range(2):
            graph.replay()
            with pytest.raises(OutOfBounds, match="copy wrote 4 bytes past the end of target"):
                session.raise_reported()
        session.discard_errors()


def test_a_neighbours_row_must_not_change() -> None:
    rows = torch.zeros((4, 8), dtype=torch.int32, device="cuda")
    with check_on_gpu() as session:
        session.allow(rows, write=lambda x, y, z: x)
        copy[(3,)](make_numbers(24), rows, 24, 0, BLOCK=8)
        with pytest.raises(AccessRuleViolation) as caught:
            copy[(3,)](make_numbers(24) + 1, rows, 24, 2, BLOCK=8)
        session.discard_errors()
    words = str(caught.value)
    assert re.search(r"copy wrote target\[(\d), 0\], outside of what program \((\d), 0, 0\)", words)
    assert "tl.store(target + at + shift" in words
    assert rows[:, :2].tolist() == [[0, 1], [8, 9], [16, 17], [0, 0]]  # and was removed


def test_an_access_rule_of_an_argument_holds_for_its_launch_and_for_reads() -> None:
    with check_on_gpu() as session:
        session.allow_argument(
            "copy",
            "source",
            read=lambda launch, x, y, z: slice(8 * x, launch.arguments["count"] - 1),
        )
        for count in (24, 20):
            with pytest.raises(
                AccessRuleViolation, match=rf"copy read source\[{count - 1}\], outside"
            ):
                copy[(3,)](make_numbers(24), make_numbers(32), count, 0, BLOCK=8)
        session.discard_errors()


def test_unsupported_access_rules_leave_other_launches_checked() -> None:
    """The same kernel runs between guard zones with access rules, and checked without them."""
    with check_on_gpu() as session:
        pool, fenced, plain = make_numbers(2), make_numbers(4), make_numbers(4)
        table = torch.tensor([pool.data_ptr()], device="cuda")
        session.allow(fenced, write=lambda x, y, z: 0)
        known.through_table[(1,)](table, fenced)  # finds that out
        known.through_table[(1,)](table, fenced)
        assert session.unchecked_kernels == {"through_table"}
        assert (fenced[0].item(), fenced[1:].tolist()) == (1, [1, 2, 3])
        short = torch.tensor([pool[1:].data_ptr()], device="cuda")
        with pytest.raises(OutOfBounds, match="through_table read"):
            known.through_table[(1,)](short, plain)
        session.discard_errors()


def test_uninitialized_elements_are_found() -> None:
    with check_on_gpu() as session:
        target = torch.empty(24, dtype=torch.int32, device="cuda")
        copy[(2,)](make_numbers(24), target, 24, 0, BLOCK=8)
        session.assert_written(target, slice(0, 16))
        with pytest.raises(UninitializedMemory, match="8 of 24 elements"):
            session.assert_written(target)


LOST = """
import torch
from test_gpu_checking import known
from harness import checking

try:
    with checking.checked("cuda"):  # of an address from a table nobody knows whose it is
        table = torch.tensor([2**45], device="cuda")
        known.through_table[(1,)](table, torch.zeros(4, dtype=torch.int32, device="cuda"))
except checking.DeviceLost as error:
    print("lost:", error)
"""


def test_a_lost_device_is_reported_with_the_launch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOST],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                [
                    str(Path(__file__).parent),
                    *map(str, FOLDERS),
                    str(paths.project_folder()),
                    os.environ.get("PYTHONPATH", ""),
                ]
            ),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "lost: through_table[1, 1, 1]: CUDA error" in done.stdout, done.stderr
    assert "table int64 [1]" in done.stdout
