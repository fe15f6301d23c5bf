"""The evaluations of a store: each is written whole, again and again as it grows."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import msgspec

from harness.errors import UnfixError
from harness.store.eval.values import Evaluation
from harness.store.file import StoreFile
from harness.store.writers import alive, me


class Listed(msgspec.Struct):
    """What a list says of an evaluation; its answers may be many megabytes."""

    identity: str
    name: str
    command: str
    started: float
    seconds: float
    state: str
    green: bool
    configurations: int
    counts: dict[str, int]  # of comparisons, by verdict
    faults: int
    caught: int


class Evaluations(StoreFile):
    """What `unfix eval` leaves behind."""

    def save_evaluation(self, evaluation: Evaluation) -> None:
        """All there is of it so far: one that is killed can be read up to its last save."""
        listed, data = _written(listing(evaluation)), _written(evaluation)
        name = evaluation.name.encode(errors="backslashreplace").decode()
        with self._writing():
            self._put(
                *("evaluations", evaluation.identity, evaluation.started, evaluation.state),
                *(name, me(), listed, data),
            )

    def evaluations(self) -> list[Listed]:
        """Every evaluation without what it holds, the oldest first."""
        with self._explained():
            rows = self._db.execute(
                "SELECT state, process, listed FROM evaluations ORDER BY started, identity"
            ).fetchall()
            found = []
            for state, process, text in rows:
                listed = msgspec.convert(json.loads(text), Listed)
                listed.state = _now(state, process)
                found.append(listed)
        return found

    def find_evaluation(self, name: str) -> Evaluation | None:
        """A whole evaluation, by its identity or by how that begins; None if there is none."""
        found = [one.identity for one in self.evaluations() if one.identity.startswith(name)]
        if not found:
            return None
        if len(found) > 1:
            raise UnfixError(f"{self.file} holds more than one evaluation {name}")
        with self._explained():
            state, process, data = self._db.execute(
                "SELECT state, process, data FROM evaluations WHERE identity = ?", found
            ).fetchone()
            evaluation = msgspec.convert(json.loads(data), Evaluation)
        evaluation.state = _now(state, process)
        return evaluation

    def evaluation(self, name: str) -> Evaluation:
        found = self.find_evaluation(name)
        if found is None:
            raise UnfixError(f"{self.file} holds no evaluation {name}: `unfix report --list`")
        return found

    def merge_evaluations(self, other: Evaluations) -> None:
        """Take in those of another file that this one lacks, or has only a part of."""
        here = {one.identity: one.state for one in self.evaluations()}
        for one in other.evaluations():
            if here.get(one.identity) != "done":
                with self._writing():
                    rows = "SELECT * FROM evaluations WHERE identity = ?"
                    for row in other._db.execute(rows, (one.identity,)):
                        self._put("evaluations", *row)


def listing(evaluation: Evaluation) -> Listed:
    return Listed(
        identity=evaluation.identity,
        name=evaluation.name,
        command=evaluation.command,
        started=evaluation.started,
        seconds=evaluation.seconds,
        state=evaluation.state,
        green=evaluation.green,
        configurations=len(evaluation.served),
        counts=dict(Counter(one.verdict.value for one in evaluation.compared)),
        faults=len(evaluation.faults),
        caught=sum(fault.caught for fault in evaluation.faults),
    )


def _now(state: str, process: str) -> str:
    return "stopped" if state == "running" and not alive(process) else state


def _written(value: Any) -> str:
    """Python's JSON, not msgspec's: a fault may give logprobs that are no numbers, which are null
    to the latter and cannot be read again, and text that is no UTF-8, which it refuses."""
    return json.dumps(msgspec.to_builtins(value))
