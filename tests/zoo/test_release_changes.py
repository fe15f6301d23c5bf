"""`unfix zoo --since`: what starts, holds and is launched otherwise on a later release."""

from __future__ import annotations

import pytest

from harness.cli.main import main
from harness.runs.zoo.release_changes import ZooChange, compare_runs
from harness.store.zoo.values import (
    ArchitectureResult,
    ClaimResult,
    ClaimVerdict,
    ZooClaim,
    ZooRun,
)

HOLDS, FAILS, KNOWN = ClaimVerdict.HOLDS, ClaimVerdict.FAILS, ClaimVerdict.EXPECTED


def make_row(
    name: str, starts: ClaimVerdict = HOLDS, graph: ClaimVerdict | None = None, kernel: str = "k"
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


def test_releases_are_compared_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo", "llama", "--since", "0.5.20", "--revert", "28788"]) == 2
    assert "leave out --revert and --enable" in capsys.readouterr().err
    assert main(["zoo", "llama", "--since", "0.5.23", "--release", "0.5.23"]) == 2
    assert "name another" in capsys.readouterr().err
