"""SGLang's own `load_jit` runs once its modules are asked for, whatever wrapped it before."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from harness.core.after_import import rebind_in_all_modules
from harness.sanitizer.plugins.for_sglang import device_hooks


def build_module(*_: str) -> str:
    """Stand for SGLang's own loader."""
    return "built"


def wrap_loader(loader: ModuleType) -> None:
    """Wrap a loader as toggles do."""
    load_jit: Any = vars(loader)["load_jit"]
    rebind_in_all_modules("load_jit", load_jit, lambda *args: f"wrapped {load_jit(*args)}")


@pytest.mark.parametrize("wraps_first", [False, True])
def test_modules_are_stand_ins_until_the_own_ones_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, wraps_first: bool
) -> None:
    loader, kernels = ModuleType(device_hooks.OWN_LOADER), ModuleType("sglang.kernels.ops.toy")
    for module in (loader, kernels):
        monkeypatch.setitem(sys.modules, module.__name__, module)
        module.load_jit = build_module  # type: ignore[attr-defined]
    monkeypatch.setattr(device_hooks, "_runs_real_modules", False)

    steps = [device_hooks._choose_at_each_call, wrap_loader]
    for step in reversed(steps) if wraps_first else steps:
        step(loader)
    load_jit: Any = vars(kernels)["load_jit"]  # what a kernel's module has imported
    assert "JitModule" in str(load_jit("rmsnorm"))

    device_hooks.leave_load_jit()
    assert load_jit("rmsnorm") == "wrapped built"
