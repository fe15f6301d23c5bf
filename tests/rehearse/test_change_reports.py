"""`rehearse --diff` writes its page, its Markdown and its record, as every run does."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from harness.cli.rehearse.command import show_changes
from harness.core.outcomes import RunStatus
from harness.store.rehearse.values import (
    DeploymentChange,
    DeploymentResult,
    RehearsalRun,
    RehearsedLaunch,
)
from reports.rehearse import changes as change_reports
from reports.rehearse import view
from reports.shared.tables import TableCell


def make_run(release: str, slots: int, weights: int) -> RehearsalRun:
    launch = RehearsedLaunch("sglang.decode:stage1", "decode", (8, 1, 1), {})
    one = DeploymentResult(
        *("llama", "llama", "H200", 8),
        settings={"slots": slots},
        memory={"weights": weights},
        launches=[launch],
    )
    run = RehearsalRun(
        id=f"of-{release}",
        started="2026-01-01T00:00:00+00:00",
        release=release,
        status=RunStatus.FINISHED,
    )
    run.deployments = [one]
    return run


def print_changes(tmp_path: Path, weights: int) -> tuple[int, str, str, dict[str, object]]:
    """Compare a run with one of other weights; return the exit code and what is written."""
    files = {name: tmp_path / f"changes.{name}" for name in ("html", "markdown", "record")}
    runs = [make_run("0.5.18", 100, 1 << 30), make_run("0.5.23", 90, weights)]
    code = show_changes(runs, argparse.Namespace(json=False, **files))
    page, markdown, record = (file.read_text() for file in files.values())
    return code, page, markdown, json.loads(record)


def test_what_is_for_the_worse_is_shown_before_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, page, markdown, record = print_changes(tmp_path, 2 << 30)
    assert code == 1
    words = "1 deployment of SGLang 0.5.18 and 0.5.23: 2 changes, 1 for the worse"
    assert all(words in text for text in (page, markdown, capsys.readouterr().out))
    assert page.index("memory of weights") < page.index("slots")
    assert record["runs"] == ["of-0.5.18", "of-0.5.23"]


def test_a_change_of_several_deployments_is_one_row() -> None:
    changes = [
        DeploymentChange(name, "kernel copy", "not launched", "4 launches: decode")
        for name in ("llama", "qwen", "gpt-oss")
    ]
    runs = [make_run("0.5.18", 1, 1), make_run("0.5.23", 1, 1)]
    for is_short, names in ((False, "llama, qwen, gpt-oss"), (True, "llama and 2 more")):
        [[deployments, *_]] = view.make_change_table(runs, changes, is_short=is_short).rows
        assert isinstance(deployments, TableCell)
        assert deployments.text == names
    assert "llama, qwen, gpt-oss" in change_reports.render_markdown(runs, changes)
    assert "llama, qwen, gpt-oss" in change_reports.render_page(runs, changes)
