"""A process has the programs ready that a fork of it needed."""

from __future__ import annotations

from typing import Any

import kernels_to_check as known
import pytest
import torch

from harness import checking
from harness.kernels import cpu
from harness.kernels.cpu import program_cache


def launch() -> None:
    source, target = torch.arange(36), torch.zeros(4, 5, dtype=torch.int64)
    caches = known.by_rows.device_caches
    known.by_rows.device_caches = type(caches)(known.by_rows.create_binder)
    try:
        with checking.checked():
            known.by_rows[(4,)](source, target, 9, 5, BLOCK=8)
    finally:
        known.by_rows.device_caches = caches
    assert target.tolist() == source.view(4, 9)[:, :5].tolist()


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What is loaded, by a process that has nothing yet."""
    loaded: list[bytes] = []
    function = program_cache._load_launch_function

    def noted(code: bytes) -> Any:
        loaded.append(code)
        return function(code)

    monkeypatch.setattr(program_cache, "_loaded_programs", {})
    monkeypatch.setattr(program_cache, "_load_launch_function", noted)
    return loaded


def test_what_a_fork_needed_is_loaded_before_it_is_asked_for(loads: list[bytes]) -> None:
    launch()
    needed = cpu.list_loaded_programs()
    assert len(loads) == len(needed) == 1
    program_cache._loaded_programs.clear()
    cpu.preload_programs(needed)
    assert len(loads) == 2
    launch()
    cpu.preload_programs(needed)
    assert len(loads) == 2


def test_what_is_not_on_disk_stays_out(loads: list[bytes]) -> None:
    cpu.preload_programs({"no such program": False, "nor such": True})
    assert not cpu.list_loaded_programs()
    assert not loads


def test_a_process_that_forks_has_room_for_so_many(
    loads: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    launch()
    needed = cpu.list_loaded_programs()
    program_cache._loaded_programs.clear()
    monkeypatch.setattr(program_cache, "_MAX_LOADED_PROGRAMS", 0)
    cpu.preload_programs(needed)
    assert not cpu.list_loaded_programs()
