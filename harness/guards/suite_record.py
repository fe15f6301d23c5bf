"""A run of suites as a JSON file: the machine, the settings, and the outcome of each guard."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from harness.core import machine
from harness.guards import not_applicable

RECORDED_OUTCOMES = ("passed", "failed", "error", "skipped")


def write_suite_record(file: Path, stats: dict[str, list[Any]], settings: dict[str, Any]) -> None:
    """Write the outcome of every guard of a finished run, and its machine."""
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
    # The report of a file that pytest cannot collect has neither properties nor a duration.
    properties = dict(getattr(report, "user_properties", ()))
    record: dict[str, Any] = {"guard": report.nodeid, "outcome": outcome}
    record["seconds"] = round(getattr(report, "duration", 0.0), 2)
    if "reach" in properties:
        record["reach"] = properties["reach"]
    if "counterexample" in properties:
        example = extract_falsifying_example(str(properties["notes"]))
        record["counterexample"] = [str(properties["counterexample"]), *example]
    if outcome == "skipped":
        record["why"] = not_applicable.read_skip_reason(report)
    if outcome in ("failed", "error"):
        record["why"] = str(report.longrepr)[-2000:]
    return record


def extract_falsifying_example(notes: str) -> list[str]:
    """Return the shrunk example, without the line that reproduces it."""
    return [line for line in notes.splitlines() if line.strip() and "reproduce_failure" not in line]
