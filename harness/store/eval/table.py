"""The stored evaluations. Each save writes the whole evaluation again."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from typing import Any

import msgspec

from harness.core.outcomes import RunStatus
from harness.store.eval.values import Evaluation
from harness.store.run_table import RunTable


class ListedEvaluation(msgspec.Struct):
    """An evaluation without its answers, which can take many megabytes."""

    id: str
    name: str
    command: str
    started: float
    seconds: float
    status: RunStatus
    green: bool
    configurations: int
    counts: dict[str, int]  # of comparisons, by verdict
    faults: int
    caught: int

    @property
    def summary(self) -> str:
        parts = [f"{count} {verdict}" for verdict, count in self.counts.items()]
        parts = parts or ["no comparisons"]
        parts += [f"{self.caught} of {self.faults} faults caught"] if self.faults else []
        return f"{self.name}: {', '.join(parts)}"


class EvalTable(RunTable[ListedEvaluation, Evaluation]):
    """Stored evaluations: a summary in `runs`, the whole as the one item of part `evaluation`."""

    kind = "eval"
    noun = "evaluation"
    listed_type = ListedEvaluation

    def _write_run(self, run: Evaluation, status: RunStatus) -> None:
        super()._write_run(run, status)
        self._write_item(run.id, "evaluation", _encode_json(run))

    def _format_started(self, run: Evaluation) -> str:
        return datetime.datetime.fromtimestamp(run.started, datetime.UTC).isoformat()

    def _encode_run(self, run: Evaluation, status: RunStatus) -> str:
        return _encode_json(summarize_evaluation(run))

    def _load_whole(self, run: ListedEvaluation) -> Evaluation:
        ((_, evaluation),) = self.load_owned_items(run.id, "evaluation", Evaluation)
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
    """Encode in Python's JSON dialect, for the NaN logprobs and lone surrogates of planted faults.

    msgspec writes NaN as null and refuses lone surrogates.
    """
    return json.dumps(msgspec.to_builtins(value))
