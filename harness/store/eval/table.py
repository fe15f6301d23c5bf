"""The evaluations of a store: each is written whole, again and again as it grows."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, ClassVar

import msgspec

from harness.store.eval.values import Evaluation
from harness.store.table import Table, as_it_is
from harness.store.writers import me


class Listed(msgspec.Struct):
    """What a list says of an evaluation; its answers may be many megabytes."""

    id: str = msgspec.field(name="identity")
    name: str
    command: str
    started: float
    seconds: float
    status: str = msgspec.field(name="state")
    green: bool
    configurations: int
    counts: dict[str, int]  # of comparisons, by verdict
    faults: int
    caught: int

    @property
    def summary(self) -> str:
        said = [f"{count} {verdict}" for verdict, count in self.counts.items()]
        said = said or ["no comparisons"]
        said += [f"{self.caught} of {self.faults} faults caught"] if self.faults else []
        return f"{self.name}: {', '.join(said)}"


class Evaluations(Table[Listed, Evaluation]):
    """What `unfix eval` leaves behind."""

    noun = "evaluation"
    tables: ClassVar = {"evaluations": "identity"}
    kind = Listed

    def save(self, evaluation: Evaluation) -> None:
        """All there is of it so far: one that is killed can be read up to its last save."""
        listed, data = _written(listing(evaluation)), _written(evaluation)
        name = evaluation.name.encode(errors="backslashreplace").decode()
        with self.store.writing():
            self.store.put(
                *("evaluations", evaluation.id, evaluation.started, evaluation.status),
                *(name, me(), listed, data),
            )

    def all(self) -> list[Listed]:
        with self.store.explained():
            rows = self.store.db.execute(
                "SELECT state, process, listed FROM evaluations ORDER BY started, identity"
            ).fetchall()
            found = []
            for state, process, text in rows:
                listed = msgspec.convert(json.loads(text), Listed)
                listed.status = as_it_is(state, process)
                found.append(listed)
        return found

    def whole(self, run: Listed) -> Evaluation:
        with self.store.explained():
            (data,) = self.store.db.execute(
                "SELECT data FROM evaluations WHERE identity = ?", (run.id,)
            ).fetchone()
            evaluation = msgspec.convert(json.loads(data), Evaluation)
        evaluation.status = run.status
        return evaluation


def listing(evaluation: Evaluation) -> Listed:
    return Listed(
        id=evaluation.id,
        name=evaluation.name,
        command=evaluation.command,
        started=evaluation.started,
        seconds=evaluation.seconds,
        status=evaluation.status,
        green=evaluation.green,
        configurations=len(evaluation.served),
        counts=dict(Counter(one.verdict.value for one in evaluation.compared)),
        faults=len(evaluation.faults),
        caught=sum(fault.caught for fault in evaluation.faults),
    )


def _written(value: Any) -> str:
    """Python's JSON, not msgspec's: a fault may give logprobs that are no numbers, which are null
    to the latter and cannot be read again, and text that is no UTF-8, which it refuses."""
    return json.dumps(msgspec.to_builtins(value))
