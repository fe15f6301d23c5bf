"""A review without problems, and one with a problem in each part and hostile text."""

from __future__ import annotations

from harness.core.outcomes import RunStatus
from harness.store.pr.part_results import (
    ClaimChange,
    GuardChange,
    KernelAnswer,
    KernelChange,
    NewFinding,
    ToggleChange,
    ToggleEffect,
    TouchedItem,
    UnnoticedFault,
)
from harness.store.pr.values import ChangedFile, PrPart, PrRun
from harness.store.rehearse.values import DeploymentChange

NASTY = "</script><b>bold</b> [bold red]markup[/] a|b `code` 🧪"
ROWS = "python/sglang/srt/rows.py"


def make_run() -> PrRun:
    run = PrRun(
        "1", "2026-01-01T00:00:00+00:00", "~/sglang", "a..b", "ga", "gb", RunStatus.FINISHED, 9.0
    )
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
    run.findings = [
        NewFinding("m:k", ROWS, 5, "overflow", "x * y", "from rows = 7 on", "confirmed")
    ]
    kernel = KernelChange("m:k", ROWS, 6, KernelAnswer.DIFFERENT, 5, 2, "y: 1 of 3 differ", ["n=3"])
    other = KernelChange("m:j", ROWS, 7, KernelAnswer.REPORTED, 5, 2, "out of bounds")
    run.kernels = [other, kernel]
    run.faults = [
        UnnoticedFault("f1", "m:f", ROWS, 8, NASTY, "-a\n+b", "survived", "g", "runs line 8"),
    ]
    run.fault_counts, run.faults_made = {"survived": 1, "killed": 2}, 3
    run.architectures = [TouchedItem("llama", "launches k")]
    run.deployments = [TouchedItem("tp8", NASTY), TouchedItem("tp4", "", left_out="--budget")]
    run.rehearsals = [
        DeploymentChange("tp8", "batch decode", "runs", "KeyError: rows", True, True),
        DeploymentChange("tp8", "peak of decode", "1.00 GB", "2.00 GB", True),
    ]
    run.claims = [ClaimChange("llama", "starts", "holds", "fails", "no rows")]
    return run
