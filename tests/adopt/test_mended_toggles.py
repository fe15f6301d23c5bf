"""A run on a release that nobody looked at: stale toggles are mended for it, and for it alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fixture_types import Output, Patch

from harness.cli import guard_runs
from harness.core import paths
from harness.fixes.matching.toggle_status import ToggleState, find_toggle_status
from harness.fixes.registry import toggle_catalogue
from harness.fixes.registry.schema import Toggle
from harness.releases import managed_releases
from harness.releases.source_trees import FolderSourceTree

TOGGLE = """\
id: made-up
title: a row is one short
family: made_up
symptom: out-of-bounds
upstream: [1]
devices: [cpu]
why: It is a test.
variants:
  - releases: ">=0.5.9"
    target: sglang.srt.rows:count_rows
    edits:
      - fixed: make_table((size + 1, 2))
        buggy: make_table((size, 2))
"""
NEW_VERSION = "0.5.23.post2+g1a2b3c4d5e6f"


def make_tree(folder: Path, version: str, parameter: str) -> FolderSourceTree:
    """A release whose function has a parameter of this name."""
    package = folder / version / "sglang"
    (package / "srt").mkdir(parents=True)
    code = f"def count_rows({parameter}):\n    return make_table(({parameter} + 1, 2))\n"
    (package / "srt" / "rows.py").write_text(code)
    (package / "version.py").write_text(f'__version__ = "{version}"\n')
    return FolderSourceTree(folder / version, version)


def load_toggle(folder: Path) -> Toggle:
    return toggle_catalogue.load_catalogue([folder]).select("made-up")[0]


@pytest.fixture
def toggles(tmp_path: Path, monkeypatch: Patch) -> Path:
    """A folder with a toggle that needs the parameter's name, and one known release, 0.5.23."""
    monkeypatch.setenv("UNFIX_HOME", str(tmp_path))
    monkeypatch.setenv(toggle_catalogue.MENDED_VARIABLE, "")
    folder = tmp_path / "toggles"
    folder.mkdir()
    (folder / "made-up.yaml").write_text(TOGGLE)
    known = make_tree(tmp_path, "0.5.23", "size")

    class KnownRelease:
        name, has_sources = "0.5.23", True

        def open_sources(self) -> FolderSourceTree:
            return known

    monkeypatch.setattr(managed_releases, "list_releases", lambda device="cpu": [KnownRelease()])
    return folder


def test_a_stale_toggle_is_mended_for_the_run(
    toggles: Path, tmp_path: Path, capsys: Output
) -> None:
    before = (toggles / "made-up.yaml").read_bytes()
    tree = make_tree(tmp_path, NEW_VERSION, "number")
    assert find_toggle_status(load_toggle(toggles), tree).state is ToggleState.STALE
    guard_runs.mend_stale_toggles([tree], [toggles])
    assert find_toggle_status(load_toggle(toggles), tree).state is ToggleState.FIXED
    log = capsys.readouterr().err
    assert f"made-up on {NEW_VERSION}: fixed, by a mended form" in log
    assert f"`unfix drift --mend --release {NEW_VERSION}`" in log
    assert (toggles / "made-up.yaml").read_bytes() == before
    # The release that has a form of its own keeps it, and child processes read the same file.
    known = managed_releases.list_releases()[0].open_sources()
    assert find_toggle_status(load_toggle(toggles), known).state is ToggleState.FIXED
    (file,) = toggle_catalogue.list_mended_files()
    assert file.is_relative_to(paths.state_folder())
    assert str(file.parent) == os.environ[toggle_catalogue.MENDED_VARIABLE]


def test_a_toggle_without_a_proposal_stays_stale_with_the_reason(
    toggles: Path, tmp_path: Path, capsys: Output
) -> None:
    tree = make_tree(tmp_path, NEW_VERSION, "number")
    (tree.folder / "sglang" / "srt" / "rows.py").write_text("def count_rows(a):\n    return a\n")
    guard_runs.mend_stale_toggles([tree], [toggles])
    assert find_toggle_status(load_toggle(toggles), tree).state is ToggleState.STALE
    assert f"made-up on {NEW_VERSION}: stale, " in capsys.readouterr().err
    assert toggle_catalogue.list_mended_files() == []


def test_a_release_with_a_lock_of_ours_is_left_as_it_is(toggles: Path, capsys: Output) -> None:
    tree = managed_releases.list_releases()[0].open_sources()
    assert isinstance(tree, FolderSourceTree)
    rows = tree.folder / "sglang" / "srt" / "rows.py"
    rows.write_text(rows.read_text().replace("size", "number"))
    guard_runs.mend_stale_toggles([tree], [toggles])
    assert toggle_catalogue.list_mended_files() == []
    assert capsys.readouterr().err == ""
