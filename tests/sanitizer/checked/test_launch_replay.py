"""A launch is copied with all its bytes, and two versions of a kernel are compared on it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import kernels_to_replay as kernels
import pytest
import torch
from fixture_types import Patch

from harness import checking
from harness.runs.pr import kernel_replay, launch_programs
from harness.sanitizer.check import launch_capture
from harness.sanitizer.check.launch_capture import CapturedLaunch
from harness.sanitizer.triton import capture_folder
from harness.store.pr.part_results import KernelAnswer

NAME = "kernels_to_replay:scale"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.setenv(capture_folder.CAPTURE_VARIABLE, str(tmp_path))
    return tmp_path


def run_launch(size: int, kernel: Any = kernels.scale) -> torch.Tensor:
    x = torch.linspace(0.1, 1.0, size)
    y = torch.full((size,), -7.0)
    with checking.checked():
        kernel[((size + 7) // 8,)](x, y, size, 0.1, BLOCK=8)
    return y


def compare_launches(later: Any, captured: CapturedLaunch) -> kernel_replay.LaunchComparison:
    return kernel_replay.compare_launch(kernels.scale, later, captured)


def test_a_launch_runs_again_on_the_bytes_that_it_had(folder: Path) -> None:
    written = run_launch(13)
    (captured,) = launch_capture.list_captured(folder, NAME)
    assert captured.grid == (2, 1, 1)
    arguments = captured.make_arguments()
    assert arguments["y"].eq(-7.0).all()  # from before the launch
    arguments, problem = kernel_replay.launch_copy(kernels.scale, captured)
    assert problem is None
    assert torch.equal(arguments["y"], written)


def test_views_of_one_memory_still_overlap(folder: Path) -> None:
    whole = torch.arange(32.0)
    with checking.checked():
        kernels.scale[(1,)](whole[:8], whole[8:16], 8, 1.0, BLOCK=8)
    (captured,) = launch_capture.list_captured(folder, NAME)
    arguments = captured.make_arguments()
    assert len(captured.memories) == 1
    arguments["x"][:] = 5.0
    assert arguments["y"].untyped_storage().data_ptr() == (
        arguments["x"].untyped_storage().data_ptr()
    )
    assert arguments["y"].tolist() == list(range(8, 16))


def test_the_smallest_launches_of_a_kernel_are_kept(folder: Path) -> None:
    for size in range(60, 20, -1):
        run_launch(size)
    run_launch(21)  # again: stored once
    captured = launch_capture.list_captured(folder, NAME)
    assert len(captured) == launch_capture.MAX_MODE_LAUNCHES
    sizes = [launch.arguments["size"] for launch in captured]
    assert sizes == list(range(21, 21 + len(captured)))


def test_only_wanted_kernels_are_kept(folder: Path) -> None:
    capture_folder.write_wanted_kernels(folder, ["kernels_to_replay:scale_renamed"])
    run_launch(8)
    run_launch(8, kernels.scale_renamed)
    assert launch_capture.list_captured(folder, NAME) == []
    assert len(launch_capture.list_captured(folder, f"{NAME}_renamed")) == 1


def test_a_launch_with_too_much_memory_is_named(folder: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(launch_capture, "MAX_BYTES", 64)
    run_launch(13)
    assert launch_capture.list_captured(folder, NAME) == []
    assert launch_capture.was_too_large(folder, NAME)


@pytest.mark.parametrize(
    ("later", "answer", "words"),
    [
        ("scale_renamed", KernelAnswer.SAME, ""),
        ("scale_in_another_order", KernelAnswer.ROUNDING, "y: "),
        ("scale_all_but_the_last", KernelAnswer.DIFFERENT, "y: 1 of 13 elements differ"),
        ("scale_without_a_mask", KernelAnswer.REPORTED, "13"),
    ],
)
def test_each_way_to_answer_is_told_from_the_others(
    folder: Path, later: str, answer: KernelAnswer, words: str
) -> None:
    run_launch(13)
    (captured,) = launch_capture.list_captured(folder, NAME)
    found = compare_launches(getattr(kernels, later), captured)
    assert found.answer is answer
    assert words in found.why


def test_launches_around_a_captured_one_reach_a_branch_that_it_misses(folder: Path) -> None:
    """Each launch of the guards fills its blocks, so that a missing mask gives the same bits."""
    run_launch(16)
    (captured,) = launch_capture.list_captured(folder, NAME)
    assert compare_launches(kernels.scale_without_a_mask, captured).answer is KernelAnswer.SAME
    drawn = list(kernel_replay.iterate_draws(captured))
    answers = {
        later: {compare_launches(getattr(kernels, later), one).answer for one in drawn}
        for later in ("scale_without_a_mask", "scale_renamed")
    }
    assert KernelAnswer.DIFFERENT in answers["scale_without_a_mask"]
    assert answers["scale_renamed"] == {KernelAnswer.SAME}


def test_a_stride_in_place_of_an_equal_one_shows_on_drawn_launches_alone(folder: Path) -> None:
    x, y, out = torch.rand(3, 8), torch.rand(3, 8), torch.zeros(3, 8)
    with checking.checked():
        kernels.add_rows[(3,)](x, y, out, x.stride(0), y.stride(0), SIZE=8)
    (captured,) = launch_capture.list_captured(folder, "kernels_to_replay:add_rows")

    def find_answers(later: Any) -> list[KernelAnswer]:
        launches = [captured, *kernel_replay.iterate_draws(captured)]
        return [kernel_replay.compare_launch(kernels.add_rows, later, x).answer for x in launches]

    launched, *drawn = find_answers(kernels.add_rows_by_one_stride)
    assert launched is KernelAnswer.SAME
    assert KernelAnswer.DIFFERENT in drawn
    assert {*find_answers(kernels.add_rows)} == {KernelAnswer.SAME}


def test_a_draw_that_the_earlier_version_does_not_survive_is_none(folder: Path) -> None:
    run_launch(16)
    (captured,) = launch_capture.list_captured(folder, NAME)
    broken = replace(captured, arguments=captured.arguments | {"size": 400}, grid=(50, 1, 1))
    assert compare_launches(kernels.scale, broken).answer is KernelAnswer.NOT_COMPARED


def test_a_report_of_the_earlier_version_is_no_news(folder: Path) -> None:
    with pytest.raises(checking.OutOfBounds):
        run_launch(13, kernels.scale_without_a_mask)
    (captured,) = launch_capture.list_captured(folder, f"{NAME}_without_a_mask")
    found = kernel_replay.compare_launch(
        kernels.scale_without_a_mask, kernels.scale_without_a_mask, captured
    )
    assert found.answer is KernelAnswer.NOT_COMPARED
    assert "both versions end with" in found.why


def test_a_new_parameter_is_named(folder: Path) -> None:
    run_launch(8)
    (captured,) = launch_capture.list_captured(folder, NAME)
    why = kernel_replay.describe_parameter_change(kernels.scale_and_shift, captured)
    assert why == "its parameters changed: shift is new"
    same = kernel_replay.describe_parameter_change(kernels.scale_renamed, captured)
    assert same == ""


def test_the_launch_is_described_argument_by_argument(folder: Path) -> None:
    run_launch(3)
    (captured,) = launch_capture.list_captured(folder, NAME)
    lines = kernel_replay.describe_launch(captured)
    assert lines[0] == "grid = (1, 1, 1)"
    assert lines[2] == "y: float32[3] = [-7.0, -7.0, -7.0]"
    assert "size = 3" in lines


@pytest.mark.parametrize("later", ["scale_all_but_the_last", "scale_without_a_mask"])
def test_the_proposed_test_passes_before_the_change_and_fails_after_it(
    folder: Path, monkeypatch: Patch, later: str
) -> None:
    run_launch(13)
    (captured,) = launch_capture.list_captured(folder, NAME)
    text = launch_programs.write_test(captured, partial(compare_launches, getattr(kernels, later)))
    source = text.replace('"cuda"', '"cpu"')  # no GPU is played here

    def run_test() -> None:
        names: dict[str, Any] = {}
        exec(compile(source, "proposed", "exec"), names)
        with checking.checked():
            names["test_scale"]()

    run_test()
    monkeypatch.setattr(kernels, "scale", getattr(kernels, later))
    with pytest.raises((AssertionError, checking.OutOfBounds)):
        run_test()


def test_a_launch_with_many_integers_is_no_short_test(folder: Path) -> None:
    x, y = torch.arange(999, dtype=torch.int32), torch.zeros(999)
    with checking.checked():
        kernels.scale[(125,)](x, y, 999, 1.0, BLOCK=8)
    (captured,) = launch_capture.list_captured(folder, NAME)
    compare = partial(compare_launches, kernels.scale_all_but_the_last)
    assert compare(captured).answer is KernelAnswer.DIFFERENT
    assert launch_programs.write_test(captured, compare) == ""
