"""A dry run: large floats have shapes and no arithmetic, integers values; launches are sampled."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from dry_runs import call_in_dry_run

from harness.runs.rehearse.sampled_launches import SampledLauncher, choose_programs
from harness.sanitizer.device import stand_ins
from harness.sanitizer.device.memory import ALLOCATION_OBSERVERS
from harness.sanitizer.plugins.for_sglang import operators

SIDE = 1 << 17  # two such sides of bfloat16 are 34 GB


def read_resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_large_floats_have_shapes_and_take_no_memory() -> None:
    def multiply() -> list[Any]:
        before = read_resident_bytes()
        left = torch.randn(SIDE, SIDE, dtype=torch.bfloat16, device="cuda")
        product = (left @ left.T).add_(1)
        return [list(product.shape), float(product[5, 5]), read_resident_bytes() - before]

    shape, value, grown = call_in_dry_run(multiply)
    assert (shape, value) == ([SIDE, SIDE], 0.0)
    assert grown < 1 << 26


def test_an_output_that_an_operator_resizes_has_its_size_without_arithmetic() -> None:
    """`x.abs()` of torch is `abs(x, out=torch.empty(0))`, and a row's largest is asked of it."""

    def measure() -> list[list[int]]:
        rows = torch.zeros(SIDE, 4, device="cuda")
        sums = torch.empty(0, device="cuda")
        torch.add(rows[:, :2], rows[:, 2:], out=sums)
        return [list(one.shape) for one in (rows.abs(), rows.abs().amax(-1, keepdim=True), sums)]

    assert call_in_dry_run(measure) == [[SIDE, 4], [SIDE, 1], [SIDE, 2]]


def test_integers_and_small_floats_are_computed() -> None:
    def compute() -> list[Any]:
        lengths = torch.arange(1, 1 << 17, device="cuda")
        small = torch.full((8,), 0.5, device="cuda") * 3
        return [int(lengths.cumsum(0)[-1]), small.tolist()]

    assert call_in_dry_run(compute) == [sum(range(1, 1 << 17)), [1.5] * 8]


def test_an_operator_with_a_stand_in_may_still_compute_nothing() -> None:
    def activate() -> list[float]:
        operators.load_stand_ins()
        output = torch.ones(1, 2, device="cuda")
        experts = torch.zeros(1, dtype=torch.int32, device="cuda")
        source = torch.full((1, 4), 5.0, device="cuda")
        name = "jit:activation.run_activation_filtered"
        stand_ins.call_stand_in(name, (source, output, experts, 1, "silu"), {})
        return output[0].tolist()

    assert call_in_dry_run(activate) == [1.0, 1.0]


def test_a_graph_captures_a_copy_that_computes_nothing() -> None:
    def capture() -> list[str]:
        source = torch.zeros(SIDE, 2, device="cuda")
        target = torch.empty_like(source)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            target.copy_(source)
        graph.replay()
        return list(graph.steps)

    assert call_in_dry_run(capture) == ["aten::copy_"]


def choose_largest(scores: torch.Tensor) -> torch.Tensor:
    return scores.topk(8)[1]


def choose_first_of_sorted(scores: torch.Tensor) -> torch.Tensor:
    return scores.argsort(-1, descending=True)[:, :8]


def choose_by_stand_in(scores: torch.Tensor) -> torch.Tensor:
    operators.load_stand_ins()
    weights = torch.empty(len(scores), 8, device="cuda")
    ids = torch.empty(len(scores), 8, dtype=torch.int32, device="cuda")
    stand_ins.call_stand_in("sgl_kernel.topk_sigmoid", (weights, ids, scores), {})
    return ids


@pytest.mark.parametrize("choose", [choose_largest, choose_first_of_sorted, choose_by_stand_in])
def test_a_router_without_values_spreads_its_choices(
    choose: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    def route() -> list[int]:
        chosen = choose(torch.zeros(4096, 64, device="cuda"))
        return torch.bincount(chosen.flatten().cpu(), minlength=64).tolist()

    assert call_in_dry_run(route) == [4096 * 8 // 64] * 64


@pytest.mark.parametrize(
    ("rows", "choices", "width"), [(70_000, 48, 5), (70_001, 64, 8), (9_000, 8, 8)]
)
def test_a_row_without_values_chooses_what_follows_the_choices_of_the_row_before(
    rows: int, choices: int, width: int
) -> None:
    step = width if width < choices else 1

    def route() -> bool:
        chosen = torch.zeros(rows, choices, device="cuda").topk(width)[1].cpu()
        first = torch.arange(rows).unsqueeze(1) * step
        return torch.equal(chosen, (first + torch.arange(width)) % choices)

    assert call_in_dry_run(route)


def test_a_stand_in_that_chooses_without_values_sorts_none_of_them() -> None:
    """The places of 200,000 rows of 256 scores in order would take 400 MB, those chosen 6 MB."""

    def route() -> int:
        scores = torch.zeros(200_000, 256, device="cuda")
        sizes: list[int] = []
        ALLOCATION_OBSERVERS.append(lambda tensor, _: sizes.append(count_integer_bytes(tensor)))
        choose_by_stand_in(scores)
        return max(sizes)

    assert call_in_dry_run(route) == 200_000 * 8 * 8


def count_integer_bytes(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_floating_point() else tensor.numel() * tensor.itemsize


def test_the_corners_of_a_grid_run_and_a_few_between_them() -> None:
    chosen = choose_programs((4096, 32, 1))
    assert {(0, 0, 0), (4095, 0, 0), (0, 31, 0), (4095, 31, 0)} < set(chosen)
    assert len(chosen) == 8
    assert len(choose_programs((2, 2, 1))) == 4


def test_each_part_of_the_last_requests_last_head_runs() -> None:
    chosen = choose_programs((6, 32, 8))
    assert {(5, 31, part) for part in range(8)} <= set(chosen)
    assert len(chosen) <= 8 + 6 + 4  # corners, the parts between two of them, drawn ones
    assert len(choose_programs((4096, 16, 1))) == 8  # heads, which all do the same


@triton.jit
def add_to_row(target, stride, width):
    row = tl.program_id(0)
    lanes = tl.arange(0, 16)
    place = row * stride + lanes
    tl.store(target + place, tl.load(target + place, mask=lanes < width) + 1, mask=lanes < width)


def launch_sampled(rows: int, stride: int, fits: bool = True) -> Any:
    """Launch over rows of a large tensor; return its extent, its ranks, and its headlines."""

    def launch() -> list[Any]:
        target = torch.empty_strided((rows, 16), (stride, 1), device="cuda")
        launcher = SampledLauncher()
        launcher.phase, launcher.is_recording = "decode", True
        launcher.fits = lambda: fits
        with launcher:
            for _ in range(3):
                add_to_row[(rows,)](target, stride, 4)
        [record] = launcher.launches.values()
        findings = launcher.list_findings()
        return [
            [record.extent, record.count, record.programs, record.extent_text],
            [[str(finding.rank), finding.headline, finding.fits] for finding in findings],
        ]

    return call_in_dry_run(launch)


def test_the_extent_of_an_address_is_that_of_its_active_lanes() -> None:
    (extent, count, programs, text), findings = launch_sampled(1000, 4096)
    # Lanes 4 to 15 are masked off: they count no more than an overflow in them would.
    assert extent == 999 * 4096 + 3
    assert (count, findings) == (3, [])
    assert 2 <= programs <= 6
    assert "target + place" in text


def test_an_address_over_a_quarter_of_its_limit_is_near_and_one_past_it_reachable() -> None:
    stride = 1 << 21
    _, near = launch_sampled(300, stride)
    [[rank, headline, _]] = near
    assert (rank, "29% of its limit" in headline) == ("near", True)
    (extent, *_), past = launch_sampled(1026, stride)
    [[rank, headline, _]] = past
    assert (rank, extent) == ("reachable", 1 << 31)
    assert "1025 * 2097152 became" in headline


def test_an_access_whose_address_overflows_in_one_launch_is_near_in_no_other() -> None:
    def launch() -> list[str]:
        launcher = SampledLauncher()
        launcher.phase, launcher.is_recording = "decode", True
        with launcher:
            for rows in (300, 1026):
                target = torch.empty_strided((rows, 16), (1 << 21, 1), device="cuda")
                add_to_row[(rows,)](target, 1 << 21, 4)
        return [str(finding.rank) for finding in launcher.list_findings()]

    assert call_in_dry_run(launch) == ["reachable"]


@pytest.mark.parametrize("fits", [True, False])
def test_a_finding_says_whether_all_memory_before_its_launch_fits(fits: bool) -> None:
    for rows in (300, 1026):
        _, [[*_, says]] = launch_sampled(rows, 1 << 21, fits)
        assert says is fits


def test_a_probe_records_the_kernels_that_it_is_for_and_no_other() -> None:
    def launch() -> list[Any]:
        target = torch.empty_strided((1026, 16), (1 << 21, 1), device="cuda")
        launcher = SampledLauncher()
        name = f"{add_to_row.fn.__module__}:{add_to_row.fn.__qualname__}"
        counts = []
        with launcher:
            for kernels in (frozenset({name}), frozenset({"another"}), frozenset[str]()):
                with launcher.probe(kernels) as probe:
                    launcher.is_recording = True
                    add_to_row[(1026,)](target, 1 << 21, 4)
                counts.append([len(probe.launches), len(probe.findings)])
        return [counts, len(launcher.launches), len(launcher.findings)]

    assert call_in_dry_run(launch) == [[[1, 1], [0, 0], [0, 0]], 0, 0]
