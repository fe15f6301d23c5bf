"""`unfix watch`: what a version did to a finding, and what has to be rewritten."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_finding

from harness.core import paths
from harness.findings import finding_files
from harness.findings.watched_findings import WatchedFinding, WatchedState, watch_finding
from harness.fixes.registry.toggle_reader import read_toggle

FIXED = small_finding.SUMS.replace("numbers[:-1]", "numbers")
CHANGED = small_finding.SUMS.replace("numbers[:-1]", "numbers[:-2]")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(paths, "project_folder", lambda: tmp_path)
    return tmp_path


def watch_small(
    root: Path, sums: str, finding: str = small_finding.FINDING, with_toggle: bool = True
) -> WatchedFinding:
    """Watch the small finding in a version with this code."""
    small_finding.write_project(root, finding)
    base = small_finding.write_release(root / "base").sources
    tree = small_finding.write_release(root / "newer", sums, "0.5.24").sources
    read = finding_files.read_finding(root / "findings/sums.yaml", ["last-number"])
    toggle = read_toggle(root / "toggles/proposed/last-number.yaml")
    return watch_finding(read, toggle if with_toggle else None, tree, lambda _: base)


@pytest.mark.parametrize(
    ("sums", "state", "advice"),
    [
        (small_finding.SUMS, WatchedState.STILL_THERE, ""),
        (FIXED, WatchedState.FIXED, 'end `releases` by "<0.5.24", and say who fixed it'),
        (CHANGED, WatchedState.CHANGED, "write toggle and finding anew for 0.5.24"),
        ("", WatchedState.CHANGED, "write toggle and finding anew for 0.5.24"),
    ],
)
def test_the_forms_of_a_proposed_fix_tell_its_state(
    root: Path, sums: str, state: WatchedState, advice: str
) -> None:
    watched = watch_small(root, sums)
    assert watched.state is state
    assert bool(watched.advice) == bool(advice)
    assert advice in watched.advice
    assert ("-    return sum(numbers[:-1])" in watched.diff) == bool(advice)


@pytest.mark.parametrize(
    ("sums", "state"),
    [
        (small_finding.SUMS, WatchedState.STILL_THERE),
        (FIXED, WatchedState.CHANGED),
        ("", WatchedState.GONE),
    ],
)
def test_without_a_fix_the_functions_tell_it(root: Path, sums: str, state: WatchedState) -> None:
    watched = watch_small(root, sums, with_toggle=False)
    assert (watched.state, bool(watched.advice)) == (state, state is not WatchedState.STILL_THERE)


@pytest.mark.parametrize(
    ("sums", "advice"),
    [(FIXED, ""), (small_finding.SUMS, "leaves out 0.5.24, which has the bug")],
)
def test_a_finding_that_ends_before_the_version_is_not_there_any_more(
    root: Path, sums: str, advice: str
) -> None:
    ended = small_finding.FINDING.replace('">=0.5.9"', '">=0.5.9,<0.5.24"')
    watched = watch_small(root, sums, ended)
    assert advice in watched.advice
    assert bool(watched.advice) == bool(advice)


def test_a_finding_that_ended_is_fixed_whatever_its_code_is_now(root: Path) -> None:
    ended = small_finding.FINDING.replace('">=0.5.9"', '">=0.5.9,<0.5.24"')
    watched = watch_small(root, "def add_all(values):\n    return 0\n", ended, with_toggle=False)
    assert (watched.state, watched.advice) == (WatchedState.FIXED, "")
