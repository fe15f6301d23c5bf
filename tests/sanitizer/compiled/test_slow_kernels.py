"""A kernel that takes too long to read is tried once, and not again until something changes."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from harness.core.outcomes import Verdict
from harness.runs.audit import analysis_worker, lazy_release, size_limits
from harness.runs.audit.findings import KernelAudit
from harness.runs.audit.kernel_discovery import collect_kernels

KERNEL = """
import triton
import triton.language as tl


@triton.jit
def endless(x_ptr, stride):
    tl.store(x_ptr + tl.program_id(0) * stride, 1)
"""


def run_lane(world: Any, kernel: Any, monkeypatch: pytest.MonkeyPatch) -> KernelAudit:
    read, write = os.pipe()
    monkeypatch.setattr(analysis_worker, "_answer_pipe", write)
    analysis_worker._run_lane(
        world,
        [kernel],
        analysis_worker._make_queue(1),
        size_limits.read_limits(size_limits.DEFAULT_LIMITS),
        None,
    )
    os.close(write)
    with open(read, "rb") as answers:
        [line] = answers
    found = pickle.loads(bytes.fromhex(line.decode()))
    assert isinstance(found, KernelAudit)
    return found


def test_what_took_too_long_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*arguments: Any) -> KernelAudit:
        while True:
            pass

    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "kernels.py").write_text(KERNEL)
    world = lazy_release.LazyRelease(tmp_path)
    [kernel] = collect_kernels(world)
    monkeypatch.setattr(analysis_worker, "_KERNEL_SECONDS", 0.25)
    with monkeypatch.context() as patch:
        patch.setattr(analysis_worker, "_audit_kernel", endless)
        first = run_lane(world, kernel, monkeypatch)
    assert first.reasons == ("it takes more than 0.25 s",)
    assert run_lane(world, kernel, monkeypatch) == first
    monkeypatch.setattr(analysis_worker, "_KERNEL_SECONDS", 20)  # another limit is another question
    assert run_lane(world, kernel, monkeypatch).verdict is Verdict.SAFE


def test_a_fork_that_ends_before_it_begins_is_no_kernels_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_if_blamed(*arguments: Any) -> KernelAudit:
        raise AssertionError("a kernel that nobody has begun")

    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "kernels.py").write_text(KERNEL)
    world = lazy_release.LazyRelease(tmp_path)
    kernels = collect_kernels(world)
    monkeypatch.setattr(analysis_worker.processes, "die_with_parent", lambda parent: os._exit(1))
    monkeypatch.setattr(analysis_worker, "make_unknown_audit", fail_if_blamed)
    queue = analysis_worker._make_queue(len(kernels))
    analysis_worker._run_lane(
        world, kernels, queue, size_limits.read_limits(size_limits.DEFAULT_LIMITS), None
    )
    assert len(os.read(queue, 99)) == analysis_worker._NUMBER_BYTES * len(
        kernels
    )  # it is stored for another lane
    os.close(queue)
