"""A host call of a CUDA module: what a violation in it leaves behind for the next one."""

from __future__ import annotations

import pytest

from harness.kernels.check.violations import OutOfBounds
from harness.kernels.cuda import cudart
from harness.kernels.cuda.host_calls import HostCalls


def test_an_error_of_one_call_is_not_the_next_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    monkeypatch.setattr(cudart, "take_last_error", lambda: taken.append("last error"))
    calls = HostCalls()

    def launch_and_fail() -> None:
        calls._stack[-1].errors.append(OutOfBounds("a launch reads past its tensor"))
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    calls.run("jit:good", (), lambda: None, ())
    assert taken == []
    with pytest.raises(OutOfBounds, match="past its tensor"):
        calls.run("jit:bad", (), launch_and_fail, ())
    assert taken == ["last error"]
    assert calls._stack == []
