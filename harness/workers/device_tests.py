"""Tests on a GPU in a process that runs many: full memory, lost devices, and what each test leaves.

Without a GPU in use every function here does nothing more than `run_item`.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import pytest

from harness.core import device
from harness.core.outcomes import Outcome
from harness.guards import run_item
from harness.store.prove.values import SideResult
from harness.workers import drop_references


def run_protocol(
    item: pytest.Item, recorder: run_item.PhaseRecorder, with_details: bool = True
) -> SideResult:
    """Run a test, and tell a full or a lost device from a failure."""
    full_before = _count_device_ooms()
    # An error would keep the tensors of a failing example alive while the next ones run.
    drops = drop_references.drop_example_references(item)
    with drops if device.has_gpu() else contextlib.nullcontext():
        side = run_item.run_protocol(item, recorder, with_details)
    names_oom = "CUDA error: out of memory" in side.headline + side.detail
    if side.outcome not in (Outcome.PASSED, Outcome.NA) and (
        names_oom or _count_device_ooms() > full_before
    ):
        side.outcome = Outcome.OUT_OF_MEMORY
        side.headline = f"the memory of the device was full: {side.headline}"
    elif (error := read_pending_error()) and side.outcome is not Outcome.FAILED:
        side.outcome = Outcome.CUDA_ERROR
        side.headline = side.headline or f"the device is lost after the test: {error}"
    return side


def start_device() -> None:
    """Start CUDA in this process, if the run has a GPU."""
    if device.has_gpu():
        import torch

        torch.ones(1, device="cuda").item()


def read_free_share() -> float:
    """Return the part of the device's memory that no process uses; 1 without a device in use."""
    if (cuda := _find_initialized_cuda()) is None:
        return 1.0
    free, total = cuda.mem_get_info()
    return float(free / total)


def read_pending_error() -> str:
    """Return the error of one of the test's launches that is pending on the device."""
    if (cuda := _find_initialized_cuda()) is None:
        return ""
    try:
        cuda.synchronize()
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return ""


def release_memory() -> None:
    """Free the device memory that a test used, for the next test of any process."""
    if (cuda := _find_initialized_cuda()) is not None:
        cuda.empty_cache()
    if (gpu_admission := sys.modules.get("harness.sanitizer.check.gpu_admission")) is not None:
        gpu_admission.release_admission()


def _find_initialized_cuda() -> Any:
    """Return torch.cuda if this process uses it."""
    torch: Any = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def _count_device_ooms() -> int:
    """Count the allocations of this process that failed because the device's memory was full."""
    return (
        int(cuda.memory_stats().get("num_ooms", 0))
        if (cuda := _find_initialized_cuda()) is not None
        else 0
    )
