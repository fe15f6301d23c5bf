"""A review says the same on a terminal, in Markdown, on its page and as SARIF, the worst first."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from harness.store.pr.values import (
    ChangedFile,
    ClaimChange,
    GuardChange,
    KernelAnswer,
    KernelChange,
    NewFinding,
    PrPart,
    PrRun,
    ToggleChange,
    ToggleEffect,
    UnnoticedFault,
)
from reports.pr import markdown, page, sarif, terminal

NASTY = "</script><b>bold</b> [bold red]markup[/] a|b `code` 🧪"
ROWS = "python/sglang/srt/rows.py"


def make_run() -> PrRun:
    run = PrRun("1", "2026-01-01T00:00:00+00:00", "~/sglang", "a..b", "ga", "gb", "finished", 9.0)
    run.planned = run.parts = list(PrPart)
    run.subjects = [f"1a2b3c {NASTY}"]
    run.files = [ChangedFile("sglang.srt.rows", ROWS, 3, 2)]
    return run


def add_everything(run: PrRun) -> PrRun:
    run.toggles = [
        ToggleChange(
            *("27460", NASTY, "crash", ToggleEffect.TAKEN_BACK, "fixed", "buggy"),
            path=ROWS, line=10,
        ),
        ToggleChange("1", "rows", "crash", ToggleEffect.STALE, "fixed", "stale", [], ROWS, 4, "x"),
    ]  # fmt: skip
    run.guards = [
        GuardChange("suites/a/t.py::test_rows", "27460", "proven", "broken", "passed", "failed",
                    "2 != 3", ["size=1"]),
    ]  # fmt: skip
    run.findings = [NewFinding("m:k", ROWS, 5, "wraps", "x * y", "from rows = 7 on", "confirmed")]
    kernel = KernelChange("m:k", ROWS, 6, KernelAnswer.DIFFERENT, 5, 2, "y: 1 of 3 differ", ["n=3"])
    other = KernelChange("m:j", ROWS, 7, KernelAnswer.REPORTED, 5, 2, "out of bounds")
    run.kernels = [other, kernel]
    run.faults = [
        UnnoticedFault("f1", "m:f", ROWS, 8, NASTY, "-a\n+b", "survived", "g", "runs line 8"),
    ]
    run.fault_counts, run.faults_made = {"survived": 1, "killed": 2}, 3
    run.claims = [ClaimChange("llama", "starts", "holds", "fails", "no rows")]
    return run


def render_terminal(run: PrRun) -> str:
    console = Console(file=io.StringIO(), width=200)
    terminal.print_run(run, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_each_report_has_each_problem() -> None:
    run = add_everything(make_run())
    texts = [render_terminal(run), markdown.render_markdown(run), page.render_page(run)]
    wanted = ["takes back", "27460", "test_rows", "2 != 3", "from rows = 7 on", "1 of 3 differ"]
    for text in texts:
        plain = text.replace("&#95;", "_").replace("Takes", "takes")
        assert [word for word in wanted if word not in plain] == []
        assert "<b>bold</b>" not in text or text is texts[0]
    assert len(run.problems) == 6
    assert not run.green


def test_a_run_without_problems_is_green_whatever_it_notes() -> None:
    run = add_everything(make_run())
    run.toggles, run.guards, run.findings, run.claims = [], [], [], []
    run.kernels = run.kernels[1:]  # answers that differ may be meant
    assert run.green
    assert render_terminal(run).splitlines()[-2].startswith("green  ")


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("toggles", "takes back 1 fix: 27460"),
        ("guards", "breaks 1 guard: test_rows"),
        ("kernels", "m:j now accesses memory outside of its tensors"),
        ("findings", "1 new finding of the audit: m:k:5"),
        ("claims", "breaks llama of the zoo"),
    ],
)
def test_the_worst_is_the_headline(part: str, words: str) -> None:
    order = ["toggles", "guards", "kernels", "findings", "claims"]
    run = add_everything(make_run())
    for better in order[: order.index(part)]:
        setattr(run, better, [])
    assert words in run.headline


def test_a_part_that_did_not_end_is_no_green() -> None:
    run = make_run()
    run.parts = run.parts[:2]
    assert run.problems == ["not run to the end: audit, kernels, faults, zoo"]


def test_sarif_has_each_problem_at_its_line() -> None:
    log = json.loads(sarif.render_sarif(add_everything(make_run())))["runs"][0]
    rules = {rule["id"] for rule in log["tool"]["driver"]["rules"]}
    found = {}
    for result in log["results"]:
        assert result["ruleId"] in rules
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == ROWS
        found[place["region"]["startLine"]] = (result["ruleId"], result["level"])
    assert found == {
        10: ("fix-taken-back", "error"),
        4: ("toggle-stale", "warning"),
        5: ("audit-finding", "error"),
        6: ("kernel-answers-differ", "warning"),
        7: ("kernel-answers-differ", "error"),
        8: ("fault-unnoticed", "note"),
    }


def test_a_comment_fits_into_what_github_allows() -> None:
    run = add_everything(make_run())
    run.guards = [
        GuardChange(f"suites/a/t.py::test_{n}", "1", "proven", "broken", "passed", "failed",
                    "x" * 9000)
        for n in range(40)
    ]  # fmt: skip
    text = markdown.render_markdown(run)
    assert len(text) < 65_536
    assert text.startswith(markdown.MARKER)
    assert "takes back" in text.lower()
