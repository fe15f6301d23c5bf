"""Live toggles on kernels that a GPU compiled and runs; n/a, and counted so, without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from sglang import kernels

from harness import toggles
from harness.sanitizer.triton.jit_kernels import unwrap_kernel

FOLDER = (Path(__file__).parents[2] / "toy" / "toggles",)
pytestmark = pytest.mark.needs_cuda


def launch_kernel(kernel: Any, **options: Any) -> int:
    x = torch.arange(20, dtype=torch.int32, device="cuda")
    out = torch.zeros_like(x)
    kernel[(2,)](out, x, 20, **options)
    return int(out[3])


CASES = {
    "toy-kernel": (kernels.add_kernel, {"BLOCK": 16}, 4, 103),
    "toy-helper": (kernels.calling_kernel, {"BLOCK": 16}, 6, 60),
    "toy-heuristic": (kernels.heuristic_kernel, {}, 8, 53),
    "toy-tuned": (kernels.tuned_kernel, {}, 10, 73),
    "toy-scale": (kernels.scaled_kernel, {"BLOCK": 16}, 9, 90),
}


def list_compiled(kernel: Any) -> list[int]:
    """Return the identities of the available compiled kernels."""
    caches = unwrap_kernel(kernel).device_caches
    return sorted(id(found) for per_device in caches.values() for found in per_device[0].values())


@pytest.mark.parametrize("name", CASES)
def test_a_compiled_kernel_changes_and_comes_back_as_it_was(name: str) -> None:
    kernel, options, fixed, buggy = CASES[name]
    assert launch_kernel(kernel, **options) == fixed
    before = list_compiled(kernel)
    assert before
    toggled_kernels = []
    for _ in range(3):
        with toggles.reverted(name, folders=FOLDER) as toggled:
            assert launch_kernel(kernel, **options) == buggy
            assert launch_kernel(kernel, **options) == buggy
            toggled_kernels.append(list_compiled(kernel))
        assert toggled.reach >= 2
        assert list_compiled(kernel) == before
        assert launch_kernel(kernel, **options) == fixed
        assert list_compiled(kernel) == before  # nothing was compiled again
    assert before not in toggled_kernels
    if name not in ("toy-helper", "toy-scale"):
        # A toggle's own kernel is compiled once and cached; its callers compile each time.
        assert toggled_kernels[0] == toggled_kernels[1] == toggled_kernels[2]
