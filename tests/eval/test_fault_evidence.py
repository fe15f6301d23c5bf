"""A repetition whose margins drift counts only for a fault that was seen by nothing else."""

from __future__ import annotations

import msgspec
import pytest
from faked import make_fake
from outputs import make_output

from harness.matrices.schema import MatrixFile
from harness.runs.eval.evaluation_comparer import EvaluationComparer
from harness.runs.eval.fault_evidence import MAX_REPEATED_FAILURES, choose_repeated_items
from harness.runs.eval.token_divergence import TokenOutput
from harness.store.eval.values import Evaluation, ItemAnswer, ServedConfiguration


def make_served(outputs: list[TokenOutput], right: bool = True) -> ServedConfiguration:
    answers = [
        ItemAnswer(
            *("recall", number, "?", "x", "x" if right else "y", right),
            tokens=[str(token) for token in one.tokens],
            logprobs=list(one.logprobs or ()),
            margins=list(one.margins or ()),
        )
        for number, one in enumerate(outputs)
    ]
    return ServedConfiguration("base", "llama", "current", [], "cpu", answers=answers)


@pytest.fixture
def comparer() -> EvaluationComparer:
    matrix = MatrixFile("fake", [make_fake("base")], tasks=["recall"], items=2, device="cpu")
    evaluation = Evaluation(
        id="run",
        name="fake",
        command="unfix",
        started=0.0,
        seconds=1.0,
        status="done",
        device="cpu",
        seed=0,
        items=2,
        alpha=0.05,
        cells=1,
        smallest_drop=0.05,
    )
    return EvaluationComparer(matrix, evaluation, lambda *_: "")


BASE = [make_output(), make_output()]
DRIFTS = [make_output(margins=(3.0, 3.02, 3.0, 3.0)), make_output()]
DIFFERS = [make_output(tokens=(5, 6, 9, 8)), make_output()]


@pytest.mark.parametrize("is_seen_by_drift", [False, True])
@pytest.mark.parametrize(
    ("repeated", "right", "fails"),
    [(BASE, True, False), (DRIFTS, True, None), (DIFFERS, True, True), (BASE, False, True)],
)
def test_a_drift_fails_a_repetition_only_if_the_fault_was_one(
    comparer: EvaluationComparer,
    repeated: list[TokenOutput],
    right: bool,
    fails: bool | None,
    is_seen_by_drift: bool,
) -> None:
    base = make_served(BASE)
    base = msgspec.structs.replace(base, again=base.answers)
    again = make_served(repeated, right)
    expected = is_seen_by_drift if fails is None else fails
    assert comparer._is_failing("float32", is_seen_by_drift, base, again) is expected


def test_the_items_up_to_the_sixth_failing_one_are_asked_again() -> None:
    answers = [ItemAnswer("recall", number, "?", "x", "y", number % 3 != 0) for number in range(60)]
    chosen = choose_repeated_items({"recall": list(range(60))}, answers)
    last = 3 * (MAX_REPEATED_FAILURES - 1)
    assert chosen == {"recall": list(range(last + 1))}
