"""What a history needs of a store: little of each row, so that a month is read in seconds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from harness.store.eval.values import ComparisonVerdict
from harness.store.matrix.values import AttemptOutcome, CellAttempt, MatrixCellResult
from harness.store.sqlite_file import StoreFile


class SideSummary(msgspec.Struct, gc=False):
    seconds: float = 0.0
    overhead: float = 0.0
    headline: str = ""
    first: str = ""  # what ended a first attempt, if this is the second


class CellSummary(msgspec.Struct, gc=False):
    release: str
    device: str
    toggle: str
    guard: str
    verdict: str | None
    why: str
    seconds: float = 0.0
    headline: str = ""
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
    outcome: AttemptOutcome
    how: str
    started: str
    seconds: float = 0.0
    device_seconds: float = 0.0
    last: bool = False


class AnswerSummary(msgspec.Struct, gc=False):
    error: str = ""


class ConfigurationSummary(msgspec.Struct):
    name: str
    release: str
    device: str
    ready: float = 0.0
    seconds: float = 0.0
    failure: str = ""
    absent: str = ""
    answers: list[AnswerSummary] = []


class ComparisonSummary(msgspec.Struct):
    base: str
    candidate: str
    kind: str
    task: str
    verdict: ComparisonVerdict
    words: str


class PlantedFaultSummary(msgspec.Struct):
    toggle: str
    configuration: str
    served: str
    expected: bool
    caught: bool
    absent: str = ""


class EvaluationSummary(msgspec.Struct):
    id: str = msgspec.field(name="identity")
    name: str
    command: str
    device: str
    served: list[ConfigurationSummary] = []
    compared: list[ComparisonSummary] = []
    faults: list[PlantedFaultSummary] = []
    machine: dict[str, str] = {}


class NightReader:
    """What is asked of every night; logs, tracebacks and answers stay where they are."""

    def __init__(self, store: StoreFile) -> None:
        self.store = store

    def read_cells(self, run: str) -> list[CellSummary]:
        decoder = msgspec.json.Decoder(SideSummary)
        found: dict[tuple[str, ...], CellSummary] = {}
        with self.store.explain_errors():
            for release, device, toggle, guard, verdict, why in self.store.db.execute(
                "SELECT release, device, toggle, guard, verdict, why FROM cells WHERE run = ?",
                (run,),
            ):
                cell = CellSummary(release, device, toggle, guard, verdict, why)
                found[release, device, toggle, guard] = cell
            for *key, data in self.store.db.execute(
                "SELECT release, device, toggle, guard, data FROM sides WHERE run = ?", (run,)
            ):
                one = found.get(tuple(key))
                if one is not None:
                    side = decoder.decode(data)
                    one.seconds += side.seconds + side.overhead
                    one.headline = one.headline or side.headline
                    one.first_attempt = one.first_attempt or side.first
        return list(found.values())

    def read_releases(self, run: str) -> list[ReleaseSummary]:
        with self.store.explain_errors():
            rows = self.store.db.execute(
                "SELECT data FROM releases WHERE run = ?", (run,)
            ).fetchall()
            return [msgspec.json.decode(data, type=ReleaseSummary) for (data,) in rows]

    def read_attempts(self, run: str) -> Iterator[tuple[str, AttemptSummary]]:
        """Each attempt with its cell's identity, the attempts of a cell one behind the other."""
        decoder = msgspec.json.Decoder(AttemptSummary)
        with self.store.explain_errors():
            for cell, data in self.store.db.execute(
                "SELECT cell, data FROM matrix_attempts WHERE run = ? ORDER BY cell, number", (run,)
            ):
                yield cell, decoder.decode(data)

    def read_matrix_cell(self, run: str, identity: str) -> MatrixCellResult:
        """One cell of a run, with its attempts."""
        with self.store.explain_errors():
            (data,) = self.store.db.execute(
                "SELECT data FROM matrix_cells WHERE run = ? AND cell = ?", (run, identity)
            ).fetchone()
            cell = msgspec.json.decode(data, type=MatrixCellResult)
            rows = self.store.db.execute(
                "SELECT data FROM matrix_attempts WHERE run = ? AND cell = ? ORDER BY number",
                (run, identity),
            )
            cell.attempts = [msgspec.json.decode(row, type=CellAttempt) for (row,) in rows]
        return cell

    def read_evaluation(self, identity: str) -> EvaluationSummary:
        with self.store.explain_errors():
            (data,) = self.store.db.execute(
                "SELECT data FROM evaluations WHERE identity = ?", (identity,)
            ).fetchone()
            try:
                return msgspec.json.decode(data, type=EvaluationSummary)
            except msgspec.MsgspecError:  # numbers that are none: Python's JSON reads those as well
                return msgspec.convert(json.loads(data), EvaluationSummary)
