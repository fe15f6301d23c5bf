"""A kernel that takes too long to read is given up once, and not again until something changes."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from harness.audit import limits, loading, worker
from harness.audit.collecting import collected
from harness.audit.findings import Audited, Verdict

KERNEL = """
import triton
import triton.language as tl


@triton.jit
def endless(x_ptr, stride):
    tl.store(x_ptr + tl.program_id(0) * stride, 1)
"""


def answered(world: Any, kernel: Any, monkeypatch: pytest.MonkeyPatch) -> Audited:
    read, write = os.pipe()
    monkeypatch.setattr(worker, "_answers", write)
    worker._lane(world, [kernel], worker._queue(1), limits.read(limits.OWN), None)
    os.close(write)
    with open(read, "rb") as answers:
        [line] = answers
    found = pickle.loads(bytes.fromhex(line.decode()))
    assert isinstance(found, Audited)
    return found


def test_what_took_too_long_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*given: Any) -> Audited:
        while True:
            pass

    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "kernels.py").write_text(KERNEL)
    world = loading.World(tmp_path)
    [kernel] = collected(world)
    monkeypatch.setattr(worker, "_SECONDS", 0.25)
    with monkeypatch.context() as patch:
        patch.setattr(worker, "_audited", endless)
        first = answered(world, kernel, monkeypatch)
    assert first.reasons == ("it takes more than 0.25 s",)
    assert answered(world, kernel, monkeypatch) == first
    monkeypatch.setattr(worker, "_SECONDS", 20)  # with another limit it is another question
    assert answered(world, kernel, monkeypatch).verdict is Verdict.SAFE


def test_a_fork_that_ends_before_it_begins_is_no_kernels_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blamed(*given: Any) -> Audited:
        raise AssertionError("a kernel that nobody has begun")

    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "kernels.py").write_text(KERNEL)
    world = loading.World(tmp_path)
    kernels = collected(world)
    monkeypatch.setattr(worker.processes, "die_with", lambda parent: os._exit(1))
    monkeypatch.setattr(worker, "_untold", blamed)
    queue = worker._queue(len(kernels))
    worker._lane(world, kernels, queue, limits.read(limits.OWN), None)
    assert len(os.read(queue, 99)) == worker._WIDE * len(kernels)  # it is there for another lane
    os.close(queue)
