"""A process preloads the kernels in PTX that a fork of it needed."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from ptx_kernels import FOLDER, launch_text, pack_parameters

from harness.sanitizer.llvm import stored_code
from harness.sanitizer.ptx import executor

TEXT = (FOLDER / "waits.ptx").read_text()


def run_kernel() -> None:
    values, out = np.arange(32, dtype=np.int32), np.zeros((32, 24), np.int32)
    tensors = {"in": values, "out": out}
    parameters = pack_parameters(values, out, 32)
    assert not launch_text(TEXT, parameters, tensors, entry="warp_operations", block=(32, 1, 1))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record what is read from here on, with nothing loaded so far: texts, and kernels by entry."""
    known: list[str] = []
    parse, compile_kernel = executor.PtxText, executor.compile_kernel

    def record_text(text: str) -> Any:
        known.append("a text")
        return parse(text)

    def record_kernel(module: Any, key: str, entry: str, overflow: bool) -> Any:
        known.append(entry)
        return compile_kernel(module, key, entry, overflow)

    monkeypatch.setattr(executor, "_modules", {})
    monkeypatch.setattr(executor, "_preloaded", set())
    monkeypatch.setattr(executor, "PtxText", record_text)
    monkeypatch.setattr(executor, "compile_kernel", record_kernel)
    return known


def send_kernels() -> Any:
    """Return what this process has loaded, as its supervisor reads it."""
    return msgspec.json.decode(msgspec.json.encode(executor.list_loaded_programs()))


def test_kernels_that_a_fork_needed_are_there_in_advance(reads: list[str]) -> None:
    run_kernel()
    assert len(reads) == 2
    needed = send_kernels()
    executor._modules.clear()  # a supervisor has none of it
    executor.preload_programs(needed)
    assert len(reads) == 4
    run_kernel()  # in the next fork
    executor.preload_programs(send_kernels())
    assert len(reads) == 4


def test_a_text_is_sent_once(reads: list[str]) -> None:
    run_kernel()
    [(_, text, kernels)] = send_kernels()
    assert text == TEXT
    assert len(kernels) == 1
    executor.preload_programs(send_kernels())
    assert [text for _, text, _ in send_kernels()] == [""]


def test_the_number_of_preloaded_modules_is_limited(
    reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_kernel()
    needed = send_kernels()
    executor._modules.clear()
    monkeypatch.setattr(executor, "_MAX_PRELOADED_MODULES", 0)
    executor.preload_programs(needed)
    assert not executor.list_loaded_programs()


def test_a_kernel_that_is_not_on_disk_is_left_to_the_forks(
    reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_kernel()
    needed = send_kernels()
    executor._modules.clear()
    reads.clear()
    monkeypatch.setattr(stored_code, "is_cached", lambda category, key: False)
    executor.preload_programs(needed)
    assert not reads
    assert not executor.list_loaded_programs()
