"""What two rehearsals differ in, what ranks an audit's findings, and when a run is red."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.outcomes import RunStatus, Verdict
from harness.runs.audit.deployment_ranks import make_ranks
from harness.runs.audit.findings import AuditFinding, KernelAudit
from harness.runs.audit.release_audit import ReleaseAudit
from harness.runs.rehearse.comparison import compare_runs
from harness.runs.rehearse.memory_ranks import rank_by_memory
from harness.store.rehearse.values import (
    DeploymentResult,
    FindingRank,
    RehearsalFinding,
    RehearsalRun,
    RehearsedPhase,
)

GIGABYTE = 10**9


def make_run(findings: list[RehearsalFinding]) -> RehearsalRun:
    deployment = DeploymentResult(
        *("lite", "deepseek-v2-lite", "H200", 8),
        phases=[RehearsedPhase("decode", "")],
        findings=findings,
    )
    run = RehearsalRun(id="r", started="", release="0.5.23", status=RunStatus.FINISHED)
    run.deployments = [deployment]
    return run


def make_finding(rank: FindingRank, line: int, kernel: str = "m:walk") -> RehearsalFinding:
    return RehearsalFinding(
        "IntegerOverflow", "decode", kernel, "wraps", "a.py", line, f"line {line}", rank=rank
    )


def test_a_new_finding_is_for_the_worse_and_one_that_is_gone_is_not() -> None:
    finding = make_finding(FindingRank.REACHABLE, 3)
    [new] = compare_runs(make_run([]), make_run([finding]))
    [gone] = compare_runs(make_run([finding]), make_run([]))
    assert (new.after, new.is_worse, gone.before, gone.is_worse) == ("wraps", True, "wraps", False)
    assert (new.what, new.is_broken, gone.is_broken) == ("reachable finding of decode", True, False)
    [near] = compare_runs(make_run([]), make_run([make_finding(FindingRank.NEAR, 3)]))
    assert (near.is_worse, near.is_broken) == (True, False)


def test_a_batch_that_an_error_ends_early_is_a_change() -> None:
    whole, failed = make_run([]), make_run([])
    failed.deployments[0].phases[0].failure = "KeyError: 'rows'"
    [breaks] = compare_runs(whole, failed)
    assert (breaks.what, breaks.before, breaks.is_broken) == ("batch decode", "runs", True)
    assert breaks.after == "KeyError: 'rows'"
    [mended] = compare_runs(failed, whole)
    assert (mended.after, mended.is_worse, mended.is_broken) == ("runs", False, False)
    assert compare_runs(failed, failed) == []


def test_a_run_is_red_for_what_is_reachable_and_green_for_what_is_near() -> None:
    assert make_run([make_finding(FindingRank.NEAR, 3)]).green
    assert not make_run([make_finding(FindingRank.REACHABLE, 3)]).green
    failed = make_run([])
    failed.deployments[0].phases[0].failure = "UnansweredName: no stand-in"
    assert not failed.green


def make_audit_finding(line: int) -> AuditFinding:
    numbers = {"access_line": line, "threshold": 1, "largest": 10, "value": 1}
    texts = dict.fromkeys(
        "module element access quantity shape grows model arithmetic launched".split(), ""
    )
    texts |= {"text": f"line {line}", "module": "m"}
    return AuditFinding(kernel="walk", file="a.py", line=line, reaches=(), **texts, **numbers)  # type: ignore[arg-type]


def test_an_audits_findings_are_ranked_by_line_and_only_rehearsed_ones_make_it_red() -> None:
    findings = tuple(make_audit_finding(line) for line in (1, 2, 3))
    kernel = KernelAudit("walk", "m", "a.py", 1, Verdict.OVERFLOWS, 3, findings)
    audit = ReleaseAudit("0.5.23", (kernel,), "", 1)
    assert audit.is_red  # without a rehearsal any finding counts
    ranks = make_ranks(
        make_run([make_finding(FindingRank.NEAR, 2), make_finding(FindingRank.REACHABLE, 3)])
    )
    ranked = replace(audit, ranks=ranks)
    assert [(finding.line, str(ranked.rank(finding))) for finding in ranked.findings] == [
        (3, "reachable"),
        (2, "near"),
        (1, "possible"),
    ]
    assert ranked.is_red
    assert not replace(audit, ranks=make_ranks(make_run([]))).is_red


@pytest.mark.parametrize(
    ("rank", "excess", "spare", "expected", "words"),
    [
        (FindingRank.REACHABLE, 0, 0, FindingRank.REACHABLE, "wraps"),
        (FindingRank.REACHABLE, 13, 78, FindingRank.NEAR, "a smaller --mem-fraction-static"),
        (FindingRank.NEAR, 13, 78, FindingRank.NEAR, "13.0 GB more than the card has"),
        (FindingRank.REACHABLE, 90, 78, FindingRank.POSSIBLE, "the pool can spare 78.0 GB"),
        (FindingRank.NEAR, 90, 78, FindingRank.POSSIBLE, "the pool can spare 78.0 GB"),
    ],
)
def test_a_launch_behind_memory_that_does_not_fit_is_near_only_if_the_pool_can_spare_it(
    rank: FindingRank, excess: int, spare: int, expected: FindingRank, words: str
) -> None:
    finding = make_finding(rank, 3)
    finding.fits = False
    rank_by_memory(finding, excess * GIGABYTE, spare * GIGABYTE)
    assert finding.rank is expected
    assert words in finding.headline
    run = make_run([finding])
    assert run.green == (expected is not FindingRank.REACHABLE)
    assert [one.rank for one in make_ranks(run).findings] == (
        [] if expected is FindingRank.POSSIBLE else [expected]
    )


@pytest.mark.parametrize(
    ("rank", "expected"),
    [
        (FindingRank.REACHABLE, FindingRank.NEAR),
        (FindingRank.NEAR, FindingRank.POSSIBLE),  # a smaller batch is further from the limit
    ],
)
def test_what_a_smaller_batch_may_show_is_near_though_no_pool_fits_beside_the_whole(
    rank: FindingRank, expected: FindingRank
) -> None:
    finding = make_finding(rank, 3)
    finding.fits = False
    rank_by_memory(finding, 90 * GIGABYTE, 78 * GIGABYTE, is_smallest=False)
    assert finding.rank is expected


def test_a_launch_before_memory_that_does_not_fit_is_one_that_the_server_makes() -> None:
    """The attention of a layer has run by the time that its experts do not fit."""
    finding = make_finding(FindingRank.REACHABLE, 3)
    rank_by_memory(finding, excess=90 * GIGABYTE, spare=0)
    assert (finding.rank, finding.headline) == (FindingRank.REACHABLE, "wraps")


def test_memory_that_does_not_fit_is_no_finding_of_a_kernel() -> None:
    run = make_run([make_finding(FindingRank.REACHABLE, 3, kernel="")])
    assert make_ranks(run).findings == ()
