"""A process preloads the compiled programs that a fork of it needed."""

from __future__ import annotations

from typing import Any

import kernels_to_check as known
import pytest
import torch

from harness import checking
from harness.sanitizer.cpu import program_cache
from harness.sanitizer.llvm.stored_code import CodeStore


def launch_kernel() -> None:
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
    """Record the programs loaded from here on, with none loaded so far."""
    loaded: list[bytes] = []
    load_function = CodeStore.load_function

    def record_load(store: CodeStore[Any], code: bytes) -> int:
        loaded.append(code)
        return load_function(store, code)

    monkeypatch.setattr(program_cache, "_loaded_programs", {})
    monkeypatch.setattr(CodeStore, "load_function", record_load)
    return loaded


def test_programs_that_a_fork_needed_are_loaded_in_advance(loads: list[bytes]) -> None:
    launch_kernel()
    needed = program_cache.list_loaded_programs()
    assert len(loads) == len(needed) == 1
    program_cache._loaded_programs.clear()
    program_cache.preload_programs(needed)
    assert len(loads) == 2
    launch_kernel()
    program_cache.preload_programs(needed)
    assert len(loads) == 2


def test_a_program_that_is_not_on_disk_is_not_loaded(loads: list[bytes]) -> None:
    program_cache.preload_programs({"no such program": False, "nor such": True})
    assert not program_cache.list_loaded_programs()
    assert not loads


def test_the_number_of_preloaded_programs_is_limited(
    loads: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    launch_kernel()
    needed = program_cache.list_loaded_programs()
    program_cache._loaded_programs.clear()
    monkeypatch.setattr(program_cache, "_MAX_LOADED_PROGRAMS", 0)
    program_cache.preload_programs(needed)
    assert not program_cache.list_loaded_programs()
