"""Rehearsals report reads of memory that nothing wrote, where that is known exactly."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import triton
import triton.language as tl
from dry_runs import call_in_dry_run

from harness.runs.rehearse import written_memory
from harness.runs.rehearse.sampled_launches import SampledLauncher
from harness.sanitizer.device import stand_ins
from harness.sanitizer.plugins.for_sglang import operators
from harness.sanitizer.violations.exceptions import UninitializedMemory

ROWS, WIDTH = 64, 4096  # of a tensor of floats
HUGE = 1 << 33  # elements


@triton.jit
def count_up(indices, count, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(indices + places, places, mask=places < count)


@triton.jit
def gather_rows(indices, rows, out, WIDTH: tl.constexpr):
    row = tl.load(indices + tl.program_id(0))
    columns = tl.arange(0, WIDTH)
    value = tl.load(rows + row.to(tl.int64) * WIDTH + columns)
    tl.store(out + tl.program_id(0).to(tl.int64) * WIDTH + columns, value)


@triton.jit
def copy_marks(marks, out, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    tl.store(out + places, tl.load(marks + places))


@triton.jit
def copy_by_address(addresses, indices, count, BLOCK: tl.constexpr):
    source = tl.load(addresses).to(tl.pointer_type(tl.int64))
    places = tl.arange(0, BLOCK)
    mask = places < count
    tl.store(indices + places, tl.load(source + places, mask=mask), mask=mask)


@triton.jit
def gather_and_mark(indices, rows, out, WIDTH: tl.constexpr):
    row = tl.load(indices + tl.program_id(0))
    columns = tl.arange(0, WIDTH)
    value = tl.load(rows + row * WIDTH + columns)
    tl.store(out + tl.program_id(0) * WIDTH + columns, value)
    tl.store(indices + tl.program_id(0), row)


@triton.jit
def weigh_rows(indices, out, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    tl.store(out + places, tl.load(indices + places).to(tl.float32))


def make_indices(count: int = ROWS) -> torch.Tensor:
    """Return memory for an index a row, the first `count` of them written by a kernel."""
    indices = torch.empty(ROWS, dtype=torch.int64, device="cuda")
    count_up[(4,)](indices, count, 16)
    return indices


def run_gather(indices: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
    if rows is None:
        rows = torch.zeros(ROWS, WIDTH, device="cuda")
    out = torch.empty(ROWS, WIDTH, device="cuda")
    gather_rows[(ROWS,)](indices, rows, out, WIDTH)
    return out


def gather_behind_last_index() -> None:
    run_gather(make_indices(ROWS - 1))


def gather_from_scratch_that_nothing_wrote() -> None:
    run_gather(make_indices(), torch.empty(HUGE // WIDTH, WIDTH, device="cuda"))


def gather_from_rows_that_an_operator_skipped() -> None:
    rows = torch.empty(HUGE // WIDTH, WIDTH, device="cuda")
    rows[: ROWS - 1].fill_(1)
    run_gather(make_indices(), rows)


def gather_from_columns_that_an_operator_skipped() -> None:
    rows = torch.empty(ROWS, WIDTH, device="cuda")
    rows[:, : WIDTH - 1].copy_(torch.zeros(ROWS, WIDTH - 1, device="cuda"))
    run_gather(make_indices(), rows)


def copy_all_but_last(source: torch.Tensor) -> torch.Tensor:
    """Return copies that a kernel finds by their address."""
    addresses = torch.tensor([source.data_ptr()], dtype=torch.int64, device="cuda")
    indices = torch.empty(ROWS, dtype=torch.int64, device="cuda")
    copy_by_address[(1,)](addresses, indices, ROWS - 1, ROWS)
    return indices


def gather_behind_last_copy() -> None:
    """What was made up before is freed, and its addresses count no more."""
    choose_rows()
    run_gather(copy_all_but_last(torch.arange(ROWS, device="cuda")))


def gather_by_an_overwritten_choice() -> None:
    indices = choose_rows()
    indices.copy_(torch.arange(ROWS, device="cuda"))
    run_gather(indices, torch.empty(HUGE // WIDTH, WIDTH, device="cuda"))


def gather_again_by_indices_that_nothing_wrote() -> None:
    """The second launch is like the first one, but for what its buffer holds."""
    rows = torch.zeros(ROWS, WIDTH, device="cuda")
    run_gather(make_indices(), rows)
    run_gather(torch.empty(ROWS, dtype=torch.int64, device="cuda"), rows)


def gather_and_change_the_indices() -> None:
    """The first program that runs reads what is written, and changes an index."""
    indices, rows = make_indices(), torch.empty(ROWS, WIDTH, device="cuda")
    rows[: ROWS - 1].fill_(1)
    out = torch.empty(ROWS, WIDTH, device="cuda")
    gather_and_mark[(ROWS,)](indices, rows, out, WIDTH)


PLANTED = {
    gather_by_an_overwritten_choice: "value = tl.load(rows",
    gather_again_by_indices_that_nothing_wrote: "row = tl.load(indices + tl.program_id(0))",
    gather_and_change_the_indices: "value = tl.load(rows",
    gather_behind_last_copy: "row = tl.load(indices + tl.program_id(0))",
    gather_behind_last_index: "row = tl.load(indices + tl.program_id(0))",
    gather_from_scratch_that_nothing_wrote: "value = tl.load(rows",
    gather_from_rows_that_an_operator_skipped: "value = tl.load(rows",
    gather_from_columns_that_an_operator_skipped: "value = tl.load(rows",
}


def gather_all() -> None:
    run_gather(make_indices())


def gather_what_a_kernel_wrote() -> None:
    """A kernel with floats runs as a sample: what its other programs write is not known."""
    run_gather(make_indices(), run_gather(make_indices()))


def gather_what_a_repeated_launch_wrote() -> None:
    indices, zeros = make_indices(), torch.zeros(ROWS, WIDTH, device="cuda")
    for _ in range(2):  # the second one does not run
        run_gather(indices, run_gather(indices, zeros))


def gather_what_a_stand_in_wrote() -> None:
    indices = torch.empty(ROWS, dtype=torch.int64, device="cuda")
    stand_ins.answer_with_shapes({"package.write": lambda *_: None})
    stand_ins.call_stand_in("package.write", (indices,), {})
    run_gather(indices)


def gather_what_a_collective_wrote() -> None:
    if not dist.is_initialized():
        dist.init_process_group(world_size=2)
    rows = torch.empty(ROWS, WIDTH, device="cuda")
    dist.broadcast(rows, 0)
    run_gather(make_indices(), rows)


def gather_by_indices_of_no_server() -> None:
    """The places of the largest floats are made up, so what lies there is not what is read."""
    rows = torch.empty(1 << 13, WIDTH, device="cuda")
    rows[:1].fill_(1)
    run_gather(choose_rows(), rows)


def gather_by_such_indices_over_the_host() -> None:
    rows = torch.empty(1 << 13, WIDTH, device="cuda")
    rows[:1].fill_(1)
    run_gather(choose_rows().cpu().cuda(), rows)


def gather_by_copies_of_such_indices() -> None:
    run_gather(copy_all_but_last(choose_rows()))


def gather_by_sorted_choices() -> None:
    """A stand-in sorts the places of what was made up by expert."""
    indices = torch.empty(ROWS, dtype=torch.int64, device="cuda")
    owners, sums, total = (torch.zeros(ROWS, dtype=torch.int32, device="cuda") for _ in range(3))
    operators.load_stand_ins()
    order = (choose_rows() % 4, 5, 1, indices, owners, total, sums)
    stand_ins.call_stand_in("sgl_kernel.moe_align_block_size", order, {})
    rows = torch.empty(1 << 13, WIDTH, device="cuda")
    rows[:1].fill_(1)
    run_gather(indices, rows)


def choose_rows() -> torch.Tensor:
    """Return the places of the largest of many floats, which no arithmetic gives."""
    scores = torch.zeros(ROWS, 1 << 12, device="cuda")
    return scores.topk(1, dim=1).indices.flatten()


def gather_what_was_copied() -> None:
    rows = torch.empty(ROWS, WIDTH, device="cuda")
    torch.add(torch.zeros(ROWS, WIDTH, device="cuda"), 1, out=rows)
    run_gather(make_indices().clone(), rows.clone())


def copy_small_floats() -> None:
    marks = torch.empty(16, device="cuda")
    marks[:8], marks[8:] = 1, 2
    copy_marks[(1,)](marks, torch.empty(16, device="cuda"), 16)


WHOLE = [
    gather_all,
    gather_what_a_kernel_wrote,
    gather_what_a_repeated_launch_wrote,
    gather_what_a_stand_in_wrote,
    gather_what_a_collective_wrote,
    gather_by_indices_of_no_server,
    gather_by_such_indices_over_the_host,
    gather_by_copies_of_such_indices,
    gather_by_sorted_choices,
    gather_what_was_copied,
    copy_small_floats,
]


def find_uninitialized_reads(batch: Callable[[], None]) -> list[tuple[str, str]]:
    """Make a batch in a dry run, and return the kind and the line of each finding."""

    def rehearse() -> Any:
        launcher = SampledLauncher()
        with launcher, launcher.written.follow():
            launcher.is_recording = True
            batch()
        refusals = [launch.refusal for launch in launcher.launches.values() if launch.refusal]
        assert not refusals
        return [[finding.kind, finding.text] for finding in launcher.list_findings()]

    return [tuple(one) for one in call_in_dry_run(rehearse)]


@pytest.mark.parametrize("batch", PLANTED, ids=lambda batch: batch.__name__)
def test_a_planted_read_is_named_with_its_line(batch: Callable[[], None]) -> None:
    [(kind, line)] = find_uninitialized_reads(batch)
    assert kind == UninitializedMemory.__name__
    assert line.startswith(PLANTED[batch])


@pytest.mark.parametrize("batch", WHOLE, ids=lambda batch: batch.__name__)
def test_what_may_have_been_written_is_no_finding(batch: Callable[[], None]) -> None:
    assert find_uninitialized_reads(batch) == []


def run_weigh(indices: torch.Tensor) -> None:
    weigh_rows[(1,)](indices, torch.empty(ROWS, device="cuda"), ROWS)


def gather_between_others(indices: torch.Tensor) -> None:
    """Two launches that are not probed read the indices that the probed one reads."""
    run_weigh(indices)
    run_gather(indices, torch.empty(HUGE // WIDTH, WIDTH, device="cuda"))
    run_weigh(indices)


def gather_before_a_change(indices: torch.Tensor) -> None:
    """A launch that is not probed writes into the indices when they were read."""
    run_gather(indices, torch.empty(HUGE // WIDTH, WIDTH, device="cuda"))
    rows, out = (torch.zeros(ROWS, WIDTH, device="cuda") for _ in range(2))
    gather_and_mark[(ROWS,)](indices, rows, out, WIDTH)


@pytest.mark.parametrize("batch", [gather_between_others, gather_before_a_change])
def test_each_probe_shows_what_the_one_before_showed(
    batch: Callable[[torch.Tensor], None],
) -> None:
    def probe() -> list[int]:
        launcher = SampledLauncher()
        indices = torch.arange(ROWS, device="cuda")  # as preallocated by a backend
        counts = []
        with launcher, launcher.written.follow():
            for _ in range(3):
                with launcher.probe(frozenset({f"{__name__}:gather_rows"})) as probed:
                    launcher.is_recording = True
                    batch(indices)
                counts.append(len(probed.findings))
        return counts

    assert call_in_dry_run(probe) == [1, 1, 1]


def test_a_grid_that_a_card_refuses_is_a_finding_with_its_numbers() -> None:
    """A long prompt makes such a grid, with floats that a rehearsal does not compute."""

    def rehearse() -> list[list[str]]:
        launcher = SampledLauncher()
        launcher.is_recording, launcher.phase = True, "prefill"
        rows = torch.empty(70_000, 16, device="cuda")
        with launcher:
            gather_rows[(1, 70_000)](torch.zeros(1, device="cuda").long(), rows, rows, WIDTH=16)
        return [[finding.kind, finding.headline] for finding in launcher.list_findings()]

    [[kind, headline]] = call_in_dry_run(rehearse)
    assert kind == "RefusedGrid"
    assert headline.startswith("gather_rows: ")
    assert "a grid of (1, 70000, 1): at most (2147483647, 65535," in headline


def test_memory_that_was_freed_is_not_followed() -> None:
    def count() -> int:
        launcher = SampledLauncher()
        with launcher, launcher.written.follow():
            kept = [torch.empty(ROWS + place, device="cuda") for place in range(16)]
            del kept[1:]
            kept.append(torch.zeros(1 << 20, device="cuda"))
            return len(launcher.written._unwritten)

    assert call_in_dry_run(count) == 1


def test_the_shadow_of_freed_memory_is_let_go() -> None:
    def rehearse() -> list[bool]:
        shadows: list[weakref.ref[torch.Tensor]] = []
        make_shadow = written_memory.make_shadow

        def make_known_shadow(size: int) -> torch.Tensor:
            shadow = make_shadow(size)
            shadows.append(weakref.ref(shadow))
            return shadow

        written_memory.make_shadow = make_known_shadow
        launcher = SampledLauncher()
        with launcher, launcher.written.follow():
            make_indices()
            larger = torch.empty(1 << 20, dtype=torch.int64, device="cuda")  # at another address
            count_up[(4,)](larger, ROWS, 16)
            return [shadow() is not None for shadow in shadows]

    assert call_in_dry_run(rehearse) == [False, True]
