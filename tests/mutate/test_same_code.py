"""A fault of which nvcc makes the same code in the modules that a guard launches.

Another instantiation, which no guard launches, may have other code: so the fault is unreached, and
nothing says that it cannot live.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.patching import cuda_modules
from harness.patching.live_engine import engine
from harness.runs.mutate import fault_attempt
from harness.runs.mutate.messages import FaultAttemptRequest
from harness.sanitizer.hooks import HOOKS

WORDS = "the launched modules have the same code"


@pytest.mark.parametrize(
    ("unchanged", "changed", "words"), [(2, 0, WORDS), (2, 1, ""), (0, 1, ""), (0, 0, "")]
)
def test_an_attempt_says_that_the_launched_modules_have_the_same_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unchanged: int, changed: int, words: str
) -> None:
    monkeypatch.setattr(engine, "enter", lambda changes: None)
    monkeypatch.setattr(cuda_modules.REACH, "unchanged_launches", unchanged)
    monkeypatch.setattr(cuda_modules.REACH, "changed_launches", changed)
    request = FaultAttemptRequest(1, [], 0)
    listener: Any = SimpleNamespace()
    side = fault_attempt.FaultAttemptRun(request, [], tmp_path, listener).run()
    report = fault_attempt.read_attempt_report(tmp_path, request, side)
    assert (report.not_live_reason, report.unreached_reason) == ("", words)


def test_a_launch_of_a_patched_module_with_other_code_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reach = cuda_modules.LaunchReach()
    monkeypatch.setattr(HOOKS, "sees_cuda_launches", True)
    launched: Any = SimpleNamespace()
    reach.count_launch(launched)
    assert reach.changed_launches == 0
    source: Any = SimpleNamespace(sites=[])
    with reach.call((source,)):
        reach.count_launch(launched)
    assert reach.changed_launches == 1
