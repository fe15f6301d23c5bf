"""A run of suites as a file for the tree: what ran, on what, and what each guard said."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from harness.core import machine

RECORDED_OUTCOMES = ("passed", "failed", "error", "skipped")


def write_suite_record(file: Path, stats: dict[str, list[Any]], settings: dict[str, Any]) -> None:
    """Every guard of a finished run, with its machine."""
    guards = [
        describe_guard_report(report, outcome)
        for outcome in RECORDED_OUTCOMES
        for report in stats.get(outcome, ())
        if getattr(report, "nodeid", "").startswith("suites/")
    ]
    counts = {
        outcome: sum(guard["outcome"] == outcome for guard in guards)
        for outcome in RECORDED_OUTCOMES
    }
    record = {
        "machine": machine.collect_machine_facts(),
        "command": sys.argv[1:],
        **settings,
        "counts": counts,
        "guards": sorted(guards, key=lambda guard: guard["guard"]),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(record, indent=1) + "\n")


def describe_guard_report(report: Any, outcome: str) -> dict[str, Any]:
    # A file that could not be collected has neither.
    said = dict(getattr(report, "user_properties", ()))
    told: dict[str, Any] = {"guard": report.nodeid, "outcome": outcome}
    told["seconds"] = round(getattr(report, "duration", 0.0), 2)
    if "reach" in said:
        told["reach"] = said["reach"]
    if "counterexample" in said:
        told["counterexample"] = [
            str(said["counterexample"]),
            *extract_falsifying_example(str(said["notes"])),
        ]
    if outcome == "skipped":
        told["why"] = str(report.longrepr[2]).removeprefix("Skipped: ")
    if outcome in ("failed", "error"):
        told["why"] = str(report.longrepr)[-2000:]
    return told


def extract_falsifying_example(notes: str) -> list[str]:
    """The example that Hypothesis shrank to, without the ways to paste it."""
    return [line for line in notes.splitlines() if line.strip() and "reproduce_failure" not in line]
