"""The evaluations of a store: each is written whole, again and again as it grows."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, ClassVar

import msgspec

from harness.store.eval.values import Evaluation
from harness.store.run_table import RunTable, resolve_status
from harness.store.writer_process import identify_this_process


class ListedEvaluation(msgspec.Struct):
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


class EvalTable(RunTable[ListedEvaluation, Evaluation]):
    """What `unfix eval` leaves behind."""

    noun = "evaluation"
    tables: ClassVar = {"evaluations": "identity"}
    listed_type = ListedEvaluation

    def save(self, evaluation: Evaluation) -> None:
        """All there is of it so far: one that is killed can be read up to its last save."""
        listed, data = _encode_json(summarize_evaluation(evaluation)), _encode_json(evaluation)
        name = evaluation.name.encode(errors="backslashreplace").decode()
        with self.store.write_transaction():
            self.store.replace_row(
                *("evaluations", evaluation.id, evaluation.started, evaluation.status),
                *(name, identify_this_process(), listed, data),
            )

    def list_runs(self) -> list[ListedEvaluation]:
        with self.store.explain_errors():
            rows = self.store.db.execute(
                "SELECT state, process, listed FROM evaluations ORDER BY started, identity"
            ).fetchall()
            found = []
            for state, process, text in rows:
                listed = msgspec.convert(json.loads(text), ListedEvaluation)
                listed.status = resolve_status(state, process)
                found.append(listed)
        return found

    def load_whole(self, run: ListedEvaluation) -> Evaluation:
        with self.store.explain_errors():
            (data,) = self.store.db.execute(
                "SELECT data FROM evaluations WHERE identity = ?", (run.id,)
            ).fetchone()
            evaluation = msgspec.convert(json.loads(data), Evaluation)
        evaluation.status = run.status
        return evaluation


def summarize_evaluation(evaluation: Evaluation) -> ListedEvaluation:
    return ListedEvaluation(
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


def _encode_json(value: Any) -> str:
    """Python's JSON, not msgspec's: a fault may give logprobs that are no numbers, which are null
    to the latter and cannot be read again, and text that is no UTF-8, which it refuses."""
    return json.dumps(msgspec.to_builtins(value))
