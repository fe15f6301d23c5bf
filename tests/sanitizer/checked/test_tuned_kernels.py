"""Autotuned kernels: the first configuration runs and it is said, or each of them does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import triton
from checks import check_on_cpu, launch_checked, make_numbers
from launches_to_check import multiply_tiles
from triton.compiler.errors import CompileTimeAssertionFailure
from triton.runtime.errors import OutOfResources
from tuned_to_check import copy_eight, copy_in_blocks, scale_first

from harness import checking


@pytest.fixture(autouse=True)
def _tune_anew() -> Iterator[None]:
    copy_in_blocks.cache.clear()
    yield
    copy_in_blocks.cache.clear()


def test_the_first_configuration_runs_and_their_number_is_known() -> None:
    with check_on_cpu() as session:
        copy_in_blocks[(1,)](make_numbers(8), make_numbers(8), 8)
        assert [launch.arguments["BLOCK"] for launch in session.launches] == [8]
        assert session.launches.configuration_counts == {"copy_in_blocks": 3}


def test_configurations_that_a_card_refuses_are_dropped_without_a_launch() -> None:
    hooks: list[object] = []
    copy_eight.post_hook = lambda *_, exception: hooks.append(exception)
    with check_on_cpu() as session:
        copy_in_blocks[(1,)](make_numbers(8), make_numbers(8), 8)
        copy_eight[(1,)](make_numbers(8), make_numbers(8))
        _, launch = session.launches
        assert (launch.arguments["BLOCK"], launch.options["num_warps"]) == (8, 4)
    assert isinstance(hooks[0], OutOfResources)
    assert isinstance(hooks[1], CompileTimeAssertionFailure)


def test_a_configuration_without_enough_shared_memory_is_dropped() -> None:
    sizes = [triton.Config({"K": 1024}, num_warps=16), triton.Config({"K": 64})]
    tuned = triton.autotune(sizes, key=[])(multiply_tiles)
    x, y = (torch.ones(shape, dtype=torch.bfloat16) for shape in ((64, 1024), (1024, 128)))
    with check_on_cpu() as session:
        tuned[(1,)](x, y, torch.zeros(64, 128))
        assert [launch.arguments["K"] for launch in session.launches] == [64]


def test_every_configuration_runs_if_the_session_asks_for_it() -> None:
    with checking.checked("cpu", all_configurations=True, max_reports=4) as session:
        copy_in_blocks[(1,)](make_numbers(8), make_numbers(8), 8)
        blocks = [launch.arguments["BLOCK"] for launch in session.launches]
        assert blocks == [8, 16, 32, 8]
        assert [type(error) for error in session.launches.errors] == [checking.OutOfBounds]
        session.discard_errors()


def test_no_timing_of_this_machine_is_kept_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_in_blocks, "cache_results", True)
    monkeypatch.setattr(
        triton.runtime.autotuner, "get_cache_manager", lambda _: pytest.fail("the disk is asked")
    )
    launch_checked(copy_in_blocks, (1,), make_numbers(8), make_numbers(8), 8)


def test_a_helper_that_is_not_inlined_runs() -> None:
    source, target = torch.tensor([3.0]), torch.zeros(1)
    launch_checked(scale_first, (1,), source, target)
    assert target.item() == 7
