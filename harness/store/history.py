"""What a history needs of a store: little of each row, so that a month is read in seconds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from harness.store.eval.values import Judged
from harness.store.file import StoreFile
from harness.store.matrix.values import Attempt, Outcome, RanCell


class SideGlance(msgspec.Struct, gc=False):
    seconds: float = 0.0
    overhead: float = 0.0
    headline: str = ""
    first: str = ""  # what ended a first attempt, if this is the second


class CellGlance(msgspec.Struct, gc=False):
    release: str
    device: str
    toggle: str
    guard: str
    verdict: str | None
    why: str
    seconds: float = 0.0
    headline: str = ""
    retried: str = ""


class OnGlance(msgspec.Struct):
    release: str
    device: str
    versions: dict[str, str] = {}
    machine: dict[str, Any] = {}
    seconds_to_start: float = 0.0
    unguarded: list[str] | None = None
    problems: list[str] = []


class AttemptGlance(msgspec.Struct, gc=False):
    outcome: Outcome
    how: str
    started: str
    seconds: float = 0.0
    device_seconds: float = 0.0
    last: bool = False


class AnswerGlance(msgspec.Struct, gc=False):
    error: str = ""


class ServedGlance(msgspec.Struct):
    name: str
    release: str
    device: str
    ready: float = 0.0
    seconds: float = 0.0
    failure: str = ""
    absent: str = ""
    answers: list[AnswerGlance] = []


class ComparedGlance(msgspec.Struct):
    base: str
    candidate: str
    kind: str
    task: str
    verdict: Judged
    words: str


class FaultGlance(msgspec.Struct):
    toggle: str
    configuration: str
    served: str
    expected: bool
    caught: bool
    absent: str = ""


class EvaluationGlance(msgspec.Struct):
    id: str = msgspec.field(name="identity")
    name: str
    command: str
    device: str
    served: list[ServedGlance] = []
    compared: list[ComparedGlance] = []
    faults: list[FaultGlance] = []
    machine: dict[str, str] = {}


class Glances:
    """What is asked of every night; logs, tracebacks and answers stay where they are."""

    def __init__(self, store: StoreFile) -> None:
        self.store = store

    def cells(self, run: str) -> list[CellGlance]:
        decoder = msgspec.json.Decoder(SideGlance)
        found: dict[tuple[str, ...], CellGlance] = {}
        with self.store.explained():
            for release, device, toggle, guard, verdict, why in self.store.db.execute(
                "SELECT release, device, toggle, guard, verdict, why FROM cells WHERE run = ?",
                (run,),
            ):
                cell = CellGlance(release, device, toggle, guard, verdict, why)
                found[release, device, toggle, guard] = cell
            for *key, data in self.store.db.execute(
                "SELECT release, device, toggle, guard, data FROM sides WHERE run = ?", (run,)
            ):
                one = found.get(tuple(key))
                if one is not None:
                    side = decoder.decode(data)
                    one.seconds += side.seconds + side.overhead
                    one.headline = one.headline or side.headline
                    one.retried = one.retried or side.first
        return list(found.values())

    def releases(self, run: str) -> list[OnGlance]:
        with self.store.explained():
            rows = self.store.db.execute(
                "SELECT data FROM releases WHERE run = ?", (run,)
            ).fetchall()
            return [msgspec.json.decode(data, type=OnGlance) for (data,) in rows]

    def attempts(self, run: str) -> Iterator[tuple[str, AttemptGlance]]:
        """Each attempt with its cell's identity, the attempts of a cell one behind the other."""
        decoder = msgspec.json.Decoder(AttemptGlance)
        with self.store.explained():
            for cell, data in self.store.db.execute(
                "SELECT cell, data FROM matrix_attempts WHERE run = ? ORDER BY cell, number", (run,)
            ):
                yield cell, decoder.decode(data)

    def matrix_cell(self, run: str, identity: str) -> RanCell:
        """One cell of a run, with its attempts."""
        with self.store.explained():
            (data,) = self.store.db.execute(
                "SELECT data FROM matrix_cells WHERE run = ? AND cell = ?", (run, identity)
            ).fetchone()
            cell = msgspec.json.decode(data, type=RanCell)
            rows = self.store.db.execute(
                "SELECT data FROM matrix_attempts WHERE run = ? AND cell = ? ORDER BY number",
                (run, identity),
            )
            cell.attempts = [msgspec.json.decode(row, type=Attempt) for (row,) in rows]
        return cell

    def evaluation(self, identity: str) -> EvaluationGlance:
        with self.store.explained():
            (data,) = self.store.db.execute(
                "SELECT data FROM evaluations WHERE identity = ?", (identity,)
            ).fetchone()
            try:
                return msgspec.json.decode(data, type=EvaluationGlance)
            except msgspec.MsgspecError:  # numbers that are none: Python's JSON reads those as well
                return msgspec.convert(json.loads(data), EvaluationGlance)
