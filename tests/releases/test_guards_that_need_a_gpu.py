"""On a CPU the guards of the order of launches say what they need, and are not red."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from harness.core.device import DEVICE_VARIABLE

SUITE = Path(__file__).parents[2] / "suites" / "launch_order" / "test_launch_order.py"


def test_a_guard_of_launch_order_is_not_applicable_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(DEVICE_VARIABLE, raising=False)
    guards = {name: one for name, one in runpy.run_path(str(SUITE)).items() if "test_" in name}
    assert len(guards) >= 3
    for guard in guards.values():
        with pytest.raises(pytest.skip.Exception, match="n/a: the order of launches needs a GPU"):
            guard()
