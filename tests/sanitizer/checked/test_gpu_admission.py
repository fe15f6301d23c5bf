"""A test that needs much GPU memory waits for the tests of other processes."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.sanitizer.check import gpu_admission

GIB = 1 << 30


class Device:
    """A device whose other users free memory step by step."""

    def __init__(self, free: list[int], cached: int = 0) -> None:
        self.free = free
        self.cached = cached
        self.query_count = 0

    def mem_get_info(self) -> tuple[int, int]:
        self.query_count += 1
        return (self.free.pop(0) if len(self.free) > 1 else self.free[0]), 139 * GIB

    def memory_reserved(self) -> int:
        return self.cached

    def memory_allocated(self) -> int:
        return 0

    def empty_cache(self) -> None:
        self.cached = 0


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(gpu_admission, "_lock_folder", lambda: tmp_path)
    monkeypatch.setattr(gpu_admission, "_ADMISSION_SECONDS", 0.3)
    monkeypatch.setattr(gpu_admission, "gc", SimpleNamespace(collect=lambda: 0))
    yield tmp_path
    gpu_admission.release_admission()


@pytest.mark.parametrize(
    ("size", "free", "cached", "query_count"),
    [
        (8 * GIB, [2 * GIB, 5 * GIB, 10 * GIB], 0, 3),
        (8 * GIB, [2 * GIB], 8 * GIB, 1),
        (8 * GIB, [9 * GIB], 0, 1),
        (GIB - 1, [0], 0, 0),
    ],
)
def test_an_allocation_waits_for_free_memory(
    size: int, free: list[int], cached: int, query_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_admission, "_admission_lock", -1)  # admitted
    device = Device(free, cached)
    gpu_admission.wait_for_memory(size, device, patience=30)
    assert device.query_count == query_count


def test_the_wait_for_memory_ends() -> None:
    device = Device([0])
    gpu_admission.wait_for_memory(8 * GIB, device, patience=0.2)
    assert device.query_count >= 1


def test_admission_waits_for_memory_for_the_whole_test() -> None:
    device = Device([9 * GIB, 9 * GIB, 9 * GIB, 50 * GIB])
    gpu_admission.wait_for_memory(8 * GIB, device, patience=30)
    assert device.free == [50 * GIB]
    device = Device([9 * GIB])
    gpu_admission.wait_for_memory(8 * GIB, device, patience=30)
    assert device.query_count == 1


def hold_memory(pipe: Any, folder: Path) -> None:
    gpu_admission._lock_folder = lambda: folder
    gpu_admission.wait_for_memory(GIB, Device([60 * GIB]))
    pipe.send(gpu_admission._admission_lock)
    pipe.recv()
    gpu_admission.release_admission()
    pipe.send("left")
    pipe.recv()


def test_admission_is_limited_and_freed_when_a_process_leaves_or_dies(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = multiprocessing.get_context("fork")
    others = []
    for _ in range(gpu_admission._MAX_ADMITTED):
        pipe, end_of_process = context.Pipe()
        process = context.Process(target=hold_memory, args=(end_of_process, folder), daemon=True)
        process.start()
        assert pipe.recv() >= 0
        others.append((process, pipe))
    device = Device([60 * GIB])
    gpu_admission.wait_for_memory(GIB, device)
    assert gpu_admission._admission_lock == -1  # it waited too long, and goes on without a lock
    with monkeypatch.context() as patch:
        patch.setattr(gpu_admission, "_acquire_admission", pytest.fail)
        gpu_admission.wait_for_memory(GIB, device)  # it does not wait again
    gpu_admission.release_admission()
    others[0][1].send("leave")
    assert others[0][1].recv() == "left"
    gpu_admission.wait_for_memory(GIB, device)
    assert gpu_admission._admission_lock not in (None, -1)
    gpu_admission.release_admission()
    locks = [gpu_admission._acquire_admission(folder, time.monotonic())]
    assert gpu_admission._acquire_admission(folder, time.monotonic()) == -1
    others[1][0].kill()
    others[1][0].join()
    locks.append(gpu_admission._acquire_admission(folder, time.monotonic()))
    assert min(locks) >= 0
    for lock in locks:
        os.close(lock)
    for process, _ in others:
        process.kill()
