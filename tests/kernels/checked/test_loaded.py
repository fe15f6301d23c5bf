"""A process has the programs ready that a fork of it needed."""

from __future__ import annotations

from typing import Any

import kernels_to_check as known
import pytest
import torch

from harness import checking, native
from harness.native import programs


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
    function = programs._function

    def noted(code: bytes) -> Any:
        loaded.append(code)
        return function(code)

    monkeypatch.setattr(programs, "_loaded", {})
    monkeypatch.setattr(programs, "_function", noted)
    return loaded


def test_what_a_fork_needed_is_loaded_before_it_is_asked_for(loads: list[bytes]) -> None:
    launch()
    needed = native.needed()
    assert len(loads) == len(needed) == 1
    programs._loaded.clear()
    native.load(needed)
    assert len(loads) == 2
    launch()
    native.load(needed)
    assert len(loads) == 2


def test_what_is_not_on_disk_stays_out(loads: list[bytes]) -> None:
    native.load({"no such program": False, "nor such": True})
    assert not native.needed()
    assert not loads


def test_a_process_that_forks_has_room_for_so_many(
    loads: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    launch()
    needed = native.needed()
    programs._loaded.clear()
    monkeypatch.setattr(programs, "_MOST_LOADED", 0)
    native.load(needed)
    assert not native.needed()
