"""The lines of a proof's progress in a log: what runs says so, what waits says nothing."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from harness.cli import progress_display
from harness.cli.prove.progress import ProveProgress


def test_a_release_that_waits_is_not_said_to_be_imported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_display, "FIRST_INTERVAL", 0.05)
    request: Any = SimpleNamespace(device="cpu", targets=[SimpleNamespace(name="1.0.0")])
    request.targets.append(SimpleNamespace(name="2.0.0"))
    request.split_by_device = lambda: [request]
    with ProveProgress(request) as progress:
        progress.report_release_start("1.0.0", "cpu")
        time.sleep(0.3)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 2
    assert all(line.startswith("unfix: SGLang 1.0.0 on cpu: importing") for line in lines)


def test_no_time_is_estimated_while_nothing_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_display, "FIRST_INTERVAL", 0.1)
    with progress_display.ProgressBars() as progress:
        task = progress.bar.add_task("guards", total=10)
        for _ in range(3):
            time.sleep(0.02)
            progress.bar.advance(task)
        time.sleep(0.6)
    lines = [line for line in capsys.readouterr().err.splitlines() if "3 of 10" in line]
    assert "left" in lines[0]
    assert len(lines) > 1
    assert not [line for line in lines[1:] if "left" in line]
