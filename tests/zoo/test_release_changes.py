"""`unfix zoo --since`: what starts, holds and is launched otherwise on a later release."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fixture_types import Patch

from harness.cli import guard_runs
from harness.cli.main import main
from harness.cli.zoo import command
from harness.core import machine
from harness.core.outcomes import RunStatus, Verdict
from harness.releases.source_trees import FolderSourceTree
from harness.runs.zoo.release_changes import ZooChange, compare_runs
from harness.runs.zoo.request import ZooRequest
from harness.store.database import Store
from harness.store.zoo.table import ZooTable
from harness.store.zoo.values import ArchitectureResult, ClaimResult, ZooClaim, ZooRun
from harness.workers.release_target import ReleaseTarget

HOLDS, FAILS, KNOWN = Verdict.HOLDS, Verdict.FAILS, Verdict.KNOWN


def make_row(
    name: str, starts: Verdict = HOLDS, graph: Verdict | None = None, kernel: str = "k"
) -> ArchitectureResult:
    claims = [ClaimResult(ZooClaim.STARTS, starts, "" if starts is HOLDS else "KeyError: 'x'")]
    if graph is not None:
        claims.append(ClaimResult(ZooClaim.GRAPH, graph))
    return ArchitectureResult(name, claims, kernels={kernel: 1})


def make_run(release: str, *rows: ArchitectureResult) -> ZooRun:
    return ZooRun(id=release, started="", release=release, card="H100", architectures=list(rows))


def test_an_architecture_that_no_longer_starts_is_one_change_for_the_worse() -> None:
    before = make_run("0.5.20", make_row("one", graph=HOLDS), make_row("two"))
    after = make_run("0.5.23", make_row("one", starts=FAILS), make_row("two"))
    changes = compare_runs(before, after)
    assert changes.changes == [ZooChange("one", "starts", "holds", "fails", "KeyError: 'x'")]
    assert changes.is_worse
    assert changes.compared == 2


def test_a_claim_that_holds_now_is_no_change_for_the_worse() -> None:
    before, after = (
        make_run(release, make_row("one", graph=verdict))
        for release, verdict in (("0.5.20", KNOWN), ("0.5.23", HOLDS))
    )
    (change,) = compare_runs(before, after).changes
    assert (change.claim, change.before, change.after) == ("graph", "known", "holds")
    assert not change.is_worse
    (change,) = compare_runs(after, make_run("0.5.23", make_row("one"))).changes
    assert (change.before, change.after, change.is_worse) == ("holds", "no result", True)


def test_an_architecture_that_a_release_lacks_is_absent_there() -> None:
    absent = ArchitectureResult("one", absent="SGLang runs it through transformers' own code")
    before, after = make_run("0.5.9", absent), make_run("0.5.23", make_row("one"))
    (change,) = compare_runs(before, after).changes
    assert (change.before, change.after, change.is_worse) == ("absent", "holds", False)
    assert compare_runs(after, before).is_worse


def test_kernels_and_rows_of_one_run_alone_are_named() -> None:
    before = make_run("0.5.20", make_row("one", kernel="old"), make_row("gone", kernel="g"))
    after = make_run("0.5.23", make_row("one", kernel="new"), make_row("came", kernel="c"))
    changes = compare_runs(before, after)
    assert (changes.gained, changes.lost) == (["new"], ["old"])
    assert changes.not_compared == ["came", "gone"]
    assert compare_runs(before, after, ["one"]).not_compared == []


def test_a_kernel_of_one_name_in_another_module_has_moved() -> None:
    before = make_run("0.5.9", make_row("one", kernel="srt.triton_ops:copy"), make_row("two"))
    after = make_run("0.5.23", make_row("one", kernel="kernels.ops:copy"), make_row("two"))
    changes = compare_runs(before, after)
    assert (changes.gained, changes.lost) == ([], [])
    assert changes.moved == [("srt.triton_ops:copy", "kernels.ops:copy")]
    two = make_row("two", kernel="kernels.more:copy")  # of two, neither is the earlier one
    assert compare_runs(before, make_run("0.5.23", *after.architectures[:1], two)).moved == []


def test_a_comparison_has_its_page(
    tmp_path: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = {
        "0.5.20": make_run("0.5.20", make_row("one", graph=HOLDS, kernel="m:old")),
        "0.5.23": make_run("0.5.23", make_row("one", graph=FAILS, kernel="m:new")),
    }
    monkeypatch.setattr(
        command, "prepare_target", lambda _, word: make_target(word or "0.5.23", word or "")
    )
    monkeypatch.setattr(command, "find_stored_run", lambda target, _: runs[target.name])
    page, summary, record = (tmp_path / name for name in ("page.html", "a.md", "a.json"))
    files = ["--html", str(page), "--markdown", str(summary), "--record", str(record)]
    assert main(["zoo", "--since", "0.5.20", *files]) == 1
    assert "0.5.20 to 0.5.23: 1 of 1 rows changed, 1 for the worse" in capsys.readouterr().out
    for file in (page, summary):
        assert all(words in file.read_text() for words in ("m:old", "m:new", "graph", "holds"))
    assert "<title>red" in page.read_text()
    assert '"before": "holds"' in record.read_text()


def test_releases_are_compared_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo", "llama", "--since", "0.5.20", "--revert", "28788"]) == 2
    assert "leave out --revert and --enable" in capsys.readouterr().err
    assert main(["zoo", "llama", "--since", "0.5.23", "--release", "0.5.23"]) == 2
    assert "name another" in capsys.readouterr().err


@pytest.mark.parametrize("before", [Verdict.UNTESTED, None, HOLDS, KNOWN])
def test_a_claim_that_fails_and_did_not_is_worse(before: Verdict | None) -> None:
    earlier = make_run("0.5.20", make_row("one", graph=before))
    assert compare_runs(earlier, make_run("0.5.23", make_row("one", graph=FAILS))).is_worse


def test_a_row_that_was_absent_and_fails_is_worse() -> None:
    before = make_run("0.5.9", ArchitectureResult("one", absent="not there"))
    assert compare_runs(before, make_run("0.5.23", make_row("one", starts=FAILS))).is_worse
    assert not compare_runs(before, before).is_worse


def test_what_the_user_named_is_compared_or_the_comparison_is_incomplete() -> None:
    one, two = make_row("one"), make_row("two")
    before, after = make_run("0.5.20", one), make_run("0.5.23", one, two)
    assert not compare_runs(before, after).is_incomplete
    assert not compare_runs(before, after, ["one"]).is_incomplete
    assert compare_runs(before, after, ["one", "two"]).is_incomplete
    assert compare_runs(before, make_run("0.5.23", two)).is_incomplete  # nothing in both


def make_target(name: str, requested_as: str) -> ReleaseTarget:
    return ReleaseTarget(name, Path(sys.executable), FolderSourceTree(Path(), name), requested_as)


def test_two_words_for_one_release_are_refused(
    monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        command, "prepare_target", lambda request, word: make_target("0.5.23", word or "0.5.23")
    )
    for words in (["--since", "0.5.23"], ["--since", "current"]):
        assert main(["zoo", "llama", *words]) == 2
        assert "is SGLang 0.5.23, the release that is compared" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("requested_as", "code", "versions", "is_found"),
    [
        ("0.5.23", "now", {"torch": "2"}, True),
        ("current", "now", {"torch": "2"}, False),
        ("0.5.23", "earlier", {"torch": "2"}, False),
        ("0.5.23", "now", {"torch": "1"}, False),
    ],
)
def test_a_stored_run_counts_if_one_of_today_would_be_alike(
    tmp_path: Path,
    monkeypatch: Patch,
    requested_as: str,
    code: str,
    versions: dict[str, str],
    is_found: bool,
) -> None:
    monkeypatch.setenv("UNFIX_HOME", str(tmp_path))
    target = make_target("0.5.23", requested_as)
    facts = {"versions": {"torch": "2"}}
    monkeypatch.setattr(machine, "collect_machine_facts", lambda python: facts)
    request = make_request()
    run = make_run("0.5.23", make_row("llama"))
    monkeypatch.setattr(guard_runs, "digest_guards_and_toggles", lambda *_: code)
    run.code = command.digest_work(make_target("0.5.23", "0.5.23"), request)
    run.status, run.planned, run.versions = RunStatus.FINISHED, ["llama"], versions
    table = ZooTable(Store())
    table.begin(run)
    table.save_result(run.id, 0, run.architectures[0])
    table.save(run)
    monkeypatch.setattr(guard_runs, "digest_guards_and_toggles", lambda *_: "now")
    assert (command.find_stored_run(target, request) is not None) is is_found


def make_request() -> ZooRequest:
    return ZooRequest(
        names=["llama"],
        release="0.5.23",
        card="H100",
        jobs=None,
        seconds=120.0,
        revert=[],
        enable=[],
        toggles=[],
        check=[],
        since="0.5.18",
    )
