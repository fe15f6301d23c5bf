"""What Triton compiles for a GPU is announced as preparation: it is no part of a test's time."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import triton
import triton.language as tl
from triton.backends.nvidia.compiler import CUDABackend
from triton.compiler.compiler import ASTSource, GPUTarget

from harness.core import child_process, preparation
from harness.runs.mutate import fault_attempt
from harness.sanitizer.gpu import compiler_hooks

HOPPER = GPUTarget("cuda", 90, 32)


@triton.jit
def copy_row(source, target, count, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at, at < count), at < count)


def compile_for_card(block: int) -> None:
    signature = {"source": "*i32", "target": "*i32", "count": "i32", "BLOCK": "constexpr"}
    triton.compile(ASTSource(copy_row, signature, {(3,): block}, {}), target=HOPPER)


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    compiler_hooks.install_compiler_hooks()


def delay_stage(patch: pytest.MonkeyPatch, name: str, seconds: float) -> None:
    stage = getattr(CUDABackend, name)

    def wait_and_run(*args: object) -> object:
        time.sleep(seconds)
        return stage(*args)

    patch.setattr(CUDABackend, name, wait_and_run)


def test_each_stage_of_a_compilation_is_measured_and_a_kernel_from_the_disk_takes_no_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for stage in ("make_llir", "make_ptx", "make_cubin"):
        delay_stage(monkeypatch, stage, 0.2)
    begun = time.monotonic()
    with preparation.measure_preparations() as seconds:
        compile_for_card(32)
    assert 0.6 <= sum(seconds) <= time.monotonic() - begun
    with preparation.measure_preparations() as seconds:
        compile_for_card(32)
    assert seconds == []


def test_a_guard_is_not_too_slow_because_its_faulty_kernel_is_compiled() -> None:
    """Of a fault in a kernel each guard compiles it anew: the others found theirs on the disk."""

    def compile_slowly() -> str:
        with pytest.MonkeyPatch.context() as patch:
            delay_stage(patch, "make_ptx", 1.0)
            with fault_attempt._limit_time(0.5):
                compile_for_card(64)
        return f"{os.getpid()} goes on"

    child = child_process.fork_process(compile_slowly)
    assert child.reap() != -signal.SIGALRM
    assert child_process.call_in_fork(compile_slowly).endswith("goes on")
