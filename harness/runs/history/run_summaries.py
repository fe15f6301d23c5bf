"""Stored runs in the few fields that a history needs, so that a month is read in seconds.

Logs, tracebacks and answers are skipped while the JSON is decoded: each struct here names a part of
the fields of the value in the store.
"""

from __future__ import annotations

from typing import Any

import msgspec

from harness.core.outcomes import Outcome, Verdict
from harness.runs.history.values import TrackedItem
from harness.store.database import Store
from harness.store.prove.table import ProveTable

REPORTED_PACKAGES = ("torch", "triton", "transformers", "flashinfer-python", "sglang-kernel")


class SideSummary(msgspec.Struct, gc=False):
    seconds: float = 0.0
    overhead: float = 0.0
    headline: str = ""
    first: str = ""  # the first attempt's outcome, if this is the second


class CellSummary(msgspec.Struct, gc=False):
    release: str
    device: str
    toggle: str
    guard: str
    verdict: Verdict | None = None
    why: str = ""
    seconds: float = 0.0  # time of both sides, with their overhead
    headline: str = ""  # the headline of the first side with one
    first_attempt: str = ""


class ReleaseSummary(msgspec.Struct):
    release: str
    device: str
    versions: dict[str, str] = {}
    machine: dict[str, Any] = {}
    seconds_to_start: float = 0.0
    unguarded: list[str] | None = None
    problems: list[str] = []


class AttemptSummary(msgspec.Struct, gc=False):
    outcome: Outcome
    how: str
    seconds: float = 0.0
    device_seconds: float = 0.0
    last: bool = False


class AnswerSummary(msgspec.Struct, gc=False):
    error: str = ""


class ConfigurationSummary(msgspec.Struct):
    name: str
    release: str
    ready: float = 0.0
    seconds: float = 0.0
    failure: str = ""
    absent: str = ""
    answers: list[AnswerSummary] = []

    @property
    def problem(self) -> str:
        """The problem of this configuration alone; empty without one."""
        errors = [answer.error for answer in self.answers if answer.error]
        if self.failure or errors:
            return self.failure or f"{len(errors)} errors: {errors[0]}"
        return "" if self.answers or self.absent else "it has no answers, and no reason is recorded"


class ComparisonSummary(msgspec.Struct):
    base: str
    candidate: str
    kind: str
    task: str
    verdict: Verdict
    words: str


class PlantedFaultSummary(msgspec.Struct):
    toggle: str
    configuration: str
    served: str
    expected: bool
    caught: bool
    absent: str = ""
    unconfirmed: str = ""


class EvaluationSummary(msgspec.Struct):
    name: str
    device: str
    served: list[ConfigurationSummary] = []
    compared: list[ComparisonSummary] = []
    faults: list[PlantedFaultSummary] = []
    machine: dict[str, str] = {}


def read_cells(store: Store, run_id: str) -> list[CellSummary]:
    cells = dict(ProveTable(store).load_owned_items(run_id, "cells", CellSummary))
    for owner, side in ProveTable(store).load_owned_items(run_id, "sides", SideSummary):
        if cell := cells.get(owner):
            cell.seconds += side.seconds + side.overhead
            cell.headline = cell.headline or side.headline
            cell.first_attempt = cell.first_attempt or side.first
    return list(cells.values())


def select_packages(versions: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, versions[name]) for name in REPORTED_PACKAGES if name in versions)


def name_resource(device: str, gpu: str) -> str:
    """Return the resource whose time is paid for: 'cpu', or the GPU by its name."""
    if device == "cpu":
        return device
    return gpu.partition(";")[0].partition(",")[0].strip() or device


def make_evaluation_item(
    evaluation: EvaluationSummary,
    subject: str,
    name: str,
    release: str,
    device: str,
    base: str,
) -> TrackedItem:
    against = f" against {base}" if base else ""
    details = {"matrix": evaluation.name, "what": subject, "configuration": name, "base": base}
    return TrackedItem(
        *("eval", f"{evaluation.name} {release} {device} {subject} {name}{against}"),
        f"{evaluation.name}: {subject} {name}{against}, {release}",
        *(release, device),
        tuple((key, value) for key, value in details.items() if value),
    )
