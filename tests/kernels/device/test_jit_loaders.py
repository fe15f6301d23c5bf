"""SGLang's own `load_jit` comes back where stand-ins had taken its place."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from harness.device import sglang_hooks


def build_module() -> None:
    """Stand for SGLang's own loader."""


def test_the_own_loader_is_put_back_in_all_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    loader, utils = (ModuleType(name) for name in sglang_hooks.REAL_LOADERS)
    kernels = ModuleType("sglang.kernels.ops.moe.toy")
    for module in (loader, utils, kernels):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(sglang_hooks, "_runs_real_modules", False)
    monkeypatch.setattr(sglang_hooks, "_replaced", {})

    loader.load_jit = build_module  # type: ignore[attr-defined]
    sglang_hooks._replace_load_jit(loader)
    utils.load_jit = loader.load_jit  # type: ignore[attr-defined]  # it imports the name
    sglang_hooks._replace_load_jit(utils)
    kernels.load_jit = utils.load_jit  # type: ignore[attr-defined]
    assert kernels.load_jit is not build_module

    sglang_hooks.leave_load_jit()
    for module in (loader, utils, kernels):
        assert vars(module)["load_jit"] is build_module
