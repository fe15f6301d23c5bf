"""A run on a release that nobody looked at: stale toggles are mended for it, and for it alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from fixture_types import Output, Patch
from made_up_toggle import FIXED_FORM, TOGGLE

from harness.cli import guard_runs
from harness.cli.bisect import execution as bisect_execution
from harness.cli.bisect import preparation
from harness.cli.main import main
from harness.core import paths
from harness.core.errors import NotReadyError
from harness.fixes.adopt import mended_toggles, release_timeline
from harness.fixes.matching.toggle_status import ToggleState, find_toggle_status
from harness.fixes.registry import toggle_catalogue
from harness.fixes.registry.schema import Toggle
from harness.guards import proof_exceptions
from harness.releases import installer, managed_releases
from harness.releases.source_trees import FolderSourceTree
from harness.runs.bisect.outcome_rules import OutcomeRules
from harness.runs.bisect.request import BisectRequest

NEW_VERSION = "0.5.23.post2+g1a2b3c4d5e6f"


def make_rows_code(parameter: str) -> str:
    form = FIXED_FORM.replace("size", parameter)
    return f"def count_rows({parameter}):\n    return {form}\n"


def make_tree(folder: Path, version: str, parameter: str) -> FolderSourceTree:
    """A release whose function has a parameter of this name."""
    package = folder / version / "sglang"
    (package / "srt").mkdir(parents=True)
    (package / "srt" / "rows.py").write_text(make_rows_code(parameter))
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


def test_two_releases_with_one_state_share_a_line(
    toggles: Path, tmp_path: Path, capsys: Output
) -> None:
    trees = [make_tree(tmp_path, version, "number") for version in (NEW_VERSION, "9.9.9")]
    guard_runs.mend_stale_toggles(trees, [toggles])
    log = capsys.readouterr().err
    assert f"made-up on {NEW_VERSION}, 9.9.9: fixed, by a mended form" in log
    assert log.count("by a mended form") == 1


def test_a_checkout_without_a_version_is_newer_than_every_release(
    toggles: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    """It was the oldest, so it was mended from the form of the oldest release."""
    known = managed_releases.list_releases()[0]
    older = make_tree(tmp_path, "0.5.9", "size")
    (older.folder / "sglang" / "srt" / "rows.py").rename(
        older.folder / "sglang" / "srt" / "old_rows.py"
    )
    file = toggles / "made-up.yaml"
    variant = TOGGLE.partition("variants:\n")[2].replace("srt.rows", "srt.old_rows")
    file.write_text(
        TOGGLE.replace(">=0.5.9", ">=0.5.10") + variant.replace(">=0.5.9", ">=0.5.9,<0.5.10")
    )

    class OlderRelease:
        name, has_sources = "0.5.9", True

        def open_sources(self) -> FolderSourceTree:
            return older

    monkeypatch.setattr(
        managed_releases, "list_releases", lambda device="cpu": [OlderRelease(), known]
    )
    tree = make_tree(tmp_path, "checkout", "number")
    (tree.folder / "sglang" / "version.py").unlink()
    assert tree.version is None
    guard_runs.mend_stale_toggles([tree], [toggles])
    mended = load_toggle(toggles)
    assert find_toggle_status(mended, tree).state is ToggleState.FIXED
    for release in (older, known.open_sources()):
        assert find_toggle_status(mended, release).state is ToggleState.FIXED
    assert [one.releases for one in mended.variants][-1] == ">=0.5.23.post1"


@pytest.mark.parametrize(
    ("newest", "bound"),
    [("0.5.23", "0.5.23.post1"), ("0.5.23.post1", "0.5.23.post2"), ("0.5.24rc1", "0.5.24")],
)
def test_a_checkout_without_a_version_is_just_behind_the_newest(
    tmp_path: Path, newest: str, bound: str
) -> None:
    trees = [make_tree(tmp_path, version, "size") for version in ("0.5.22", newest, "checkout")]
    (trees[-1].folder / "sglang" / "version.py").unlink()
    assert release_timeline.name_in_range(trees[-1], trees) == bound


def test_list_and_show_say_which_state_rests_on_a_mended_form(
    toggles: Path, tmp_path: Path, capsys: Output, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(paths, "toggles_folder", lambda: tmp_path / "none")
    (tmp_path / "none").mkdir()
    monkeypatch.setattr(proof_exceptions, "load_project_exceptions", lambda catalogue: [])
    tree = make_tree(tmp_path, NEW_VERSION, "number")
    words = ["--release", str(tree.folder), "--toggles", str(toggles), "--json"]
    assert main(["list", *words]) == 0
    out, log = capsys.readouterr()
    (row,) = json.loads(out)["toggles"]
    assert (row["state"], row["mended"]) == ("fixed", True)
    assert "made-up on" in log
    assert main(["list", *words[:-1]]) == 0
    assert "fixed, mended" in capsys.readouterr().out
    assert main(["show", "made-up", *words]) == 0
    out, log = capsys.readouterr()
    assert json.loads(out)[0]["state"] == "fixed"
    assert "by a mended form" in log


def test_a_toggle_without_a_proposal_stays_stale_with_the_reason(
    toggles: Path, tmp_path: Path, capsys: Output
) -> None:
    tree = make_tree(tmp_path, NEW_VERSION, "number")
    (tree.folder / "sglang" / "srt" / "rows.py").write_text("def count_rows(a):\n    return a\n")
    guard_runs.mend_stale_toggles([tree], [toggles])
    assert find_toggle_status(load_toggle(toggles), tree).state is ToggleState.STALE
    assert f"made-up on {NEW_VERSION}: stale, " in capsys.readouterr().err
    assert toggle_catalogue.list_mended_files() == []


def test_what_is_stale_on_one_release_stays_so_beside_one_that_is_mended(
    toggles: Path, tmp_path: Path, capsys: Output
) -> None:
    """A range that ended before the later one made its toggle absent, which is good news."""
    lost = "def count_rows(a):\n    return a\n"
    versions = ("0.5.23.post0+gccc", "0.5.23.post1+gaaa", "0.5.23.post2+gbbb")
    early, mended, late = (make_tree(tmp_path, version, "number") for version in versions)
    for tree in (early, late):
        (tree.folder / "sglang" / "srt" / "rows.py").write_text(lost)
        guard_runs.mend_stale_toggles([tree, mended], [toggles])
        toggle = load_toggle(toggles)
        assert find_toggle_status(toggle, mended).state is ToggleState.FIXED
        assert find_toggle_status(toggle, tree).state is ToggleState.STALE


def test_a_function_that_takes_the_name_of_its_wrapper_is_followed(
    toggles: Path, tmp_path: Path, capsys: Output
) -> None:
    """The wrapper goes, and what it called has its name: no fix is gone."""
    wrapper = "def count(**words):\n    return count_rows(**words)\n\n\n"
    base, head = (make_tree(tmp_path, f"0.5.23.post{n}+g{n}", "size") for n in (1, 2))
    limits = "    check_limits(size, maximum, minimum)\n    return"
    code = make_rows_code("size").replace("    return", limits)
    (base.folder / "sglang" / "srt" / "rows.py").write_text(wrapper + code)
    (head.folder / "sglang" / "srt" / "rows.py").write_text(code.replace("count_rows", "count"))
    guard_runs.mend_stale_toggles([base, head], [toggles])
    toggle = load_toggle(toggles)
    states = [find_toggle_status(toggle, tree).state for tree in (base, head)]
    assert states == [ToggleState.FIXED] * 2, capsys.readouterr().err


class AddedRelease:
    """A release without a lock of ours, whose sources are a tree."""

    has_sources = True

    def __init__(self, name: str, tree: FolderSourceTree) -> None:
        self.name, self.tree = name, tree

    def open_sources(self) -> FolderSourceTree:
        return self.tree


class MissingRelease(AddedRelease):
    """A release with a lock of ours, whose sources are fetched when they are needed."""

    has_sources = False


def test_the_sources_of_the_nearest_release_are_fetched_for_a_stale_toggle_alone(
    toggles: Path, tmp_path: Path, monkeypatch: Patch, capsys: Output
) -> None:
    """A fresh clone has no other release, so nothing was mended there."""
    names = ("0.5.18", "0.5.22", "0.5.23")
    known = [MissingRelease(name, make_tree(tmp_path / "old", name, "size")) for name in names]
    monkeypatch.setattr(managed_releases, "list_releases", lambda device="cpu": known)
    own = load_toggle(toggles)
    monkeypatch.setattr(mended_toggles, "load_unmended_toggles", lambda folders: [own])
    fetched = []

    def fetch(release: MissingRelease, report: object) -> None:
        fetched.append(release.name)
        release.has_sources = True

    monkeypatch.setattr(installer, "fetch_release_sources", fetch)
    well = make_tree(tmp_path, "0.5.22.post1+gaaa", "size")
    guard_runs.mend_stale_toggles([well], [toggles])
    assert fetched == []
    tree = make_tree(tmp_path, "0.5.22.post2+gbbb", "number")
    guard_runs.mend_stale_toggles([tree], [toggles])
    assert fetched == ["0.5.22", "0.5.23"]
    assert find_toggle_status(load_toggle(toggles), tree).state is ToggleState.FIXED

    def fail(release: MissingRelease, report: object) -> None:
        raise NotReadyError("the package index cannot be reached")

    for release in known:
        release.has_sources = False
    monkeypatch.setattr(installer, "fetch_release_sources", fail)
    capsys.readouterr()
    guard_runs.mend_stale_toggles([tree], [toggles])
    log = capsys.readouterr().err
    assert "mended without SGLang 0.5.22, 0.5.23: the package index cannot be reached" in log
    assert "no release near it is well" in log


def test_a_release_with_a_lock_of_ours_is_left_as_it_is(toggles: Path, capsys: Output) -> None:
    tree = managed_releases.list_releases()[0].open_sources()
    assert isinstance(tree, FolderSourceTree)
    rows = tree.folder / "sglang" / "srt" / "rows.py"
    rows.write_text(rows.read_text().replace("size", "number"))
    guard_runs.mend_stale_toggles([tree], [toggles])
    assert toggle_catalogue.list_mended_files() == []
    assert capsys.readouterr().err == ""


@pytest.fixture
def commits(toggles: Path, tmp_path: Path, monkeypatch: Patch) -> list[AddedRelease]:
    """Two commits with a form of their own each; by name, the later one comes first."""
    releases = [
        AddedRelease("gbbb", make_tree(tmp_path, "0.5.23.post1+gbbb", "number")),
        AddedRelease("gaaa", make_tree(tmp_path, "0.5.23.post2+gaaa", "amount")),
    ]
    for release in releases:
        release.tree.name = release.name
    known = [*managed_releases.list_releases(), *reversed(releases)]
    monkeypatch.setattr(managed_releases, "list_known_releases", lambda device="cpu": known)
    return releases


def test_a_search_over_releases_mends_for_both_of_its_ends(
    toggles: Path, commits: list[AddedRelease]
) -> None:
    request = BisectRequest(
        "releases", ["true"], OutcomeRules(), [str(toggles)], good="gbbb", bad="gaaa"
    )
    prepared = preparation.prepare_new_search(request)
    (toggle,) = prepared.catalogue.select("made-up")
    states = [find_toggle_status(toggle, one.tree).state for one in commits]
    assert states == [ToggleState.FIXED] * 2


def test_a_search_over_commits_as_releases_goes_by_their_versions(
    commits: list[AddedRelease],
) -> None:
    request = BisectRequest(
        "releases", ["true"], OutcomeRules(), good="0.5.23", bad="gaaa", among=["gbbb"]
    )
    assert bisect_execution.list_releases_between(request) == ["0.5.23", "gbbb", "gaaa"]


def test_any_command_can_mend_for_the_releases_that_it_names(
    toggles: Path, commits: list[AddedRelease]
) -> None:
    guard_runs.mend_for_named_releases(["current", "gaaa", None], [toggles])
    status = find_toggle_status(load_toggle(toggles), commits[1].tree)
    assert status.state is ToggleState.FIXED
