"""Live toggles on interpreted kernels: the patched source runs, and is gone afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from sglang import kernels
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import KernelInterface

from harness import toggles

FOLDER = (Path(__file__).parents[2] / "toy" / "toggles",)


def launch(kernel: Any, **options: Any) -> int:
    x = torch.arange(20, dtype=torch.int32)
    out = torch.zeros_like(x)
    kernel[(2,)](out, x, 20, **options)
    return int(out[3])


CASES = [
    ("toy-kernel", lambda: launch(kernels.add_kernel, BLOCK=16), 4, 103),
    ("toy-helper", lambda: launch(kernels.calling_kernel, BLOCK=16), 6, 60),
    ("toy-heuristic", lambda: launch(kernels.heuristic_kernel), 8, 53),
    ("toy-tuned", lambda: launch(kernels.tuned_kernel), 10, 73),
    ("toy-scale", lambda: launch(kernels.scaled_kernel, BLOCK=16), 9, 90),
]


def snapshot() -> dict[str, Any]:
    found: dict[str, Any] = {"run": InterpretedFunction.__dict__["run"]}
    for name, value in vars(kernels).items():
        if isinstance(value, KernelInterface):
            found[name] = (id(value), {k: id(v) for k, v in vars(value).items()})
            found[f"{name}.code"] = getattr(getattr(value, "fn", None), "__code__", None)
    return found


@pytest.mark.parametrize(("name", "call", "fixed", "buggy"), CASES, ids=[c[0] for c in CASES])
def test_a_kernel_changes_and_comes_back(name: str, call: Any, fixed: int, buggy: int) -> None:
    assert call() == fixed  # rewritten and cached by the interpreter before
    before = snapshot()
    rewritten = dict(InterpretedFunction.rewritten_fn)
    for _ in range(2):
        with toggles.reverted(name, folders=FOLDER) as toggled:
            assert call() == buggy
            assert call() == buggy
        assert toggled.reach >= 2
        assert snapshot() == before
        assert dict(InterpretedFunction.rewritten_fn) == rewritten
        assert call() == fixed


def test_launches_are_counted_through_callers_and_not_while_out() -> None:
    with toggles.observed("toy-helper", folders=FOLDER) as seen:
        launch(kernels.calling_kernel, BLOCK=16)
        launch(kernels.add_kernel, BLOCK=16)
        launch(kernels.calling_kernel, BLOCK=16)
    launch(kernels.calling_kernel, BLOCK=16)
    assert seen.reach == 2
