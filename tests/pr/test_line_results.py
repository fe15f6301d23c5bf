"""A review is worse, without a difference, not run, or incomplete; only the second is green."""

from __future__ import annotations

import msgspec
import pytest

from harness.core.outcomes import Outcome, RunStatus, Verdict
from harness.runs.mutate.line_coverage import GuardCoverage
from harness.runs.pr import changed_guards, line_runs, row_changes
from harness.store.pr.line_results import ChangedFunction, ReviewResult, UnrunLine
from harness.store.pr.part_results import ClaimChange, GuardChange, ToggleChange, ToggleEffect
from harness.store.pr.values import PrPart, PrRun
from harness.store.zoo.values import (
    AnswerSketch,
    ArchitectureResult,
    ClaimResult,
    ZooClaim,
    ZooRun,
)

PATH = "python/sglang/srt/rows.py"
UNRUN = UnrunLine(7, "return 1")


def make_run(*functions: ChangedFunction) -> PrRun:
    run = PrRun("1", "", "", "a..b", "ga", "gb", RunStatus.FINISHED)
    run.planned = run.parts = list(PrPart)
    run.functions = list(functions)
    return run


def make_function(**fields: object) -> ChangedFunction:
    function = ChangedFunction("sglang.srt.rows", "count", PATH, 7, changed=1)
    return msgspec.structs.replace(function, **fields)


@pytest.mark.parametrize(
    ("function", "result", "words"),
    [
        (make_function(ran_by=["zoo llama"]), "no difference", "no difference in 1 item"),
        (make_function(unrun=[UNRUN]), "not run", "not run: 1 of 1 changed line"),
        (make_function(unrun=[UNRUN], left_out=["zoo llama"]), "incomplete", "incomplete: 1 of 1"),
    ],
)
def test_what_is_known_of_the_lines_is_the_result(
    function: ChangedFunction, result: str, words: str
) -> None:
    run = make_run(function)
    assert (run.result, run.green) == (result, result == "no difference")
    assert run.headline.startswith(words)
    assert run.word == ("green" if run.green else "amber")
    assert bool(run.problems) is not run.green
    run.accepted = [result]
    assert run.green
    assert run.problems == []


def test_nothing_ran_is_never_green() -> None:
    """Seventeen of twenty bad changes had a green tick, and nothing had run for most of them."""
    run = make_run(make_function(unrun=[UNRUN], nearest="nothing runs a line of its file"))
    assert not run.green
    assert run.problems == [
        f"not run: {PATH}:7: return 1; nothing runs a line of its file",
    ]
    run.planned = run.parts = [PrPart.TOGGLES]  # sources alone are read: no line was to run
    assert run.green


def test_a_part_that_did_not_end_is_incomplete() -> None:
    run = make_run(make_function(ran_by=["zoo llama"]))
    run.parts = run.parts[:2]
    assert run.result is ReviewResult.INCOMPLETE
    assert run.word == "amber"


def make_row(error: float, verdict: Verdict, digest: str, number: float) -> ZooRun:
    claim = ClaimResult(ZooClaim.REFERENCE, verdict, "", error, 0.02)
    row = ArchitectureResult("olmo3", [claim])
    row.answers = {"logits": AnswerSketch(digest, [number] * 16, 1.0, 100, 0.001)}
    return ZooRun(id="1", started="", release="r", card="H100", architectures=[row])


@pytest.mark.parametrize(
    ("after", "worse"),
    [
        # The window is off by one: the known reason would explain the error as well.
        (make_row(0.59, Verdict.KNOWN, "b", 5.0), ["answers of logits"]),
        (make_row(0.70, Verdict.KNOWN, "b", 5.0),
         ["equals transformers", "answers of logits"]),
        # A sum in another order: within what rounding does.
        (make_row(0.58, Verdict.KNOWN, "b", 1.00001), []),
        (make_row(0.58, Verdict.KNOWN, "a", 1.0), []),
        # The bug is mended, so that the answers have to move.
        (make_row(0.001, Verdict.HOLDS, "b", 5.0), []),
    ],
)  # fmt: skip
def test_a_difference_counts_whether_or_not_the_claim_has_a_known_reason(
    after: ZooRun, worse: list[str]
) -> None:
    before = make_row(0.58, Verdict.KNOWN, "a", 1.0)
    changes = row_changes.compare_rows(before, after)
    assert [one.claim for one in changes if one.is_worse] == worse
    run = make_run(make_function(ran_by=["zoo olmo3"]))
    run.claims = changes
    line_runs.note_evidence(run)
    assert (run.result is ReviewResult.WORSE) is bool(worse)
    assert len(run.functions[0].evidence) == len(worse)
    same = after.architectures[0].answers["logits"].digest == "a"
    assert run.has_same_bits is same


def test_a_stale_fix_is_judged_by_its_guard() -> None:
    """A fix taken back in other words: no form of its toggle matches, and its guard fails."""
    stale = ToggleChange("27460", "rows", "crash", ToggleEffect.STALE, "fixed", "stale", path=PATH)
    change = GuardChange("suites/a/t.py::test_rows", "27460", "proven", "stale", "passed", "")
    outcomes = [
        (Outcome.FAILED, ReviewResult.WORSE),
        (Outcome.PASSED, ReviewResult.SAME),
        (Outcome.NA, ReviewResult.NOT_RUN),
    ]
    for outcome, result in outcomes:
        guard = msgspec.structs.replace(change)
        coverage = GuardCoverage(guard.guard, outcome, 1.0, "2 != 3")
        changed_guards.fill_plain_outcomes([guard], [], [coverage])
        run = make_run(make_function(ran_by=[guard.guard]))
        run.toggles, run.guards = [stale], [guard]
        assert run.result is result, outcome
    run = make_run(make_function(ran_by=["zoo llama"]))
    run.toggles = [stale]  # no guard of it ran
    assert run.result is ReviewResult.NOT_RUN
    assert run.problems[0].startswith("not run: 27460: stale")


def test_evidence_stands_at_the_lines_that_the_item_ran() -> None:
    ran, other = make_function(ran_by=["zoo olmo3"]), make_function(name="other", ran_by=["zoo a"])
    run = make_run(ran, other)
    run.claims = [ClaimChange("olmo3", "starts", "holds", "fails", "no rows")]
    line_runs.note_evidence(run)
    assert ran.evidence == ["olmo3: starts held and fails now: no rows"]
    assert ran.again == "./unfix zoo olmo3 --since ga --release gb"
    assert other.result is ReviewResult.SAME
