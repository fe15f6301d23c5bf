"""The guards of a toggle by the suites: those that run its code, and those that fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from calling import TOY
from fixture_types import Patch

from harness.cli import options
from harness.cli.adopt import output
from harness.fixes.registry import toggle_catalogue
from harness.releases import source_trees
from harness.runs.adopt import detection
from harness.runs.adopt.detection import DetectionReport
from harness.workers.release_target import ReleaseTarget

GUARDS = """
import pytest
from sglang import forms

@pytest.mark.guards("toy-plain")
def test_notices(): assert forms.plain(1, 2) == 4

@pytest.mark.guards("toy-plain")
def test_runs_it(): forms.plain(1, 2)

@pytest.mark.guards("toy-plain")
def test_fails_always(): assert forms.plain(1, 2) == 5

@pytest.mark.guards("toy-plain")
def test_does_not_run_it(): assert forms.CONSTANT
"""


STEPS: list[str] = []


def report_detections(
    root: Path, monkeypatch: Patch, *names: str, seconds: float = 600.0
) -> dict[str, DetectionReport]:
    monkeypatch.setenv("PYTHONPATH", str(TOY))
    monkeypatch.setenv("UNFIX_HOME", str(root))
    suites = root / "suites"
    suites.mkdir(exist_ok=True)
    (suites / "test_toy.py").write_text(GUARDS)
    folders = [TOY / "toggles"]
    toggles = toggle_catalogue.load_catalogue(folders).select_all(names)
    target = ReleaseTarget("toy", Path(sys.executable), source_trees.open_tree(TOY), "current")
    return detection.find_detecting_guards(
        toggles, target, suites, folders, 2, lambda what, done, total: STEPS.append(what), seconds
    )


def test_a_guard_detects_that_fails_only_when_reverted(tmp_path: Path, monkeypatch: Patch) -> None:
    both = report_detections(tmp_path, monkeypatch, "toy-plain", "toy-method")
    plain, other = both["toy-plain"], both["toy-method"]
    names = [guard.partition("::test_")[2] for guard in plain.runs]
    assert names == ["fails_always", "notices", "runs_it"]
    assert [guard.partition("::test_")[2] for guard in plain.notices] == ["notices"]
    assert (other.runs, other.notices, other.asked, other.left_out) == ((), (), 4, 0)
    assert set(STEPS) == {
        *("SGLang toy: importing", "guards on SGLang toy, toggled"),
        *("guards, one toggle at a time", "guards without a toggle"),
    }


def test_once_its_time_is_over_no_guard_begins(
    tmp_path: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    [report] = report_detections(tmp_path, monkeypatch, "toy-plain", seconds=0.0).values()
    assert (report.asked, report.left_out) == (0, 4)
    output.print_detection(options.make_console(), "toy-plain", report, " --toggles mine")
    shown = capsys.readouterr().out
    assert "toy-plain: no guard was run on SGLang toy\n" in shown
    assert "4 more guards were not run: `unfix adopt --ask toy-plain --toggles mine`" in shown


def test_an_import_takes_nothing_of_the_time_for_guards(tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "conftest.py").write_text("import time\ntime.sleep(1.5)\n")
    [report] = report_detections(tmp_path, monkeypatch, "toy-plain", seconds=1.0).values()
    assert report.asked > 0


def test_the_guards_of_a_toggles_family_are_asked_first(tmp_path: Path) -> None:
    for name, text in (("other", ""), ("near", "import forms"), ("toy", "")):
        (tmp_path / "suites" / name).mkdir(parents=True)
        (tmp_path / "suites" / name / "test_it.py").write_text(text)
    toggles = toggle_catalogue.load_catalogue([TOY / "toggles"]).select_all(["toy-plain"])
    guards = [f"suites/{name}/test_it.py::test_it" for name in ("other", "near", "toy")]
    ranks = [detection._rank_guard(guard, tmp_path, toggles)[0] for guard in guards]
    assert ranks == [2, 1, 0]
