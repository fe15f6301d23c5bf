"""Checked kernels on a GPU: bounds, overflow, access rules, uninitialized memory, a lost device."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import kernels_to_check as known
import pytest
import tiles
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from test_instrumentation import product

from harness import checking
from harness.checking import (
    AccessRuleViolation,
    IntegerOverflow,
    OutOfBounds,
)
from harness.core import paths
from harness.sanitizer.gpu import compiler_hooks

FOLDERS = [Path(__file__).parents[1] / name for name in ("checked", "compiled")]

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
