"""What is repeated of a planted fault: few items, or all of them where those do not show it.

A server that fails with a fault is started again, on a GPU all times at once.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from faked import TOY, Fakes, make_fake
from outputs import make_output

from harness.guards.verdicts import REQUIRED_FAILURES, REQUIRED_PASSES
from harness.matrices.schema import FaultPlacement, MatrixFile
from harness.runs.eval.evaluation_comparer import EvaluationComparer
from harness.runs.eval.fault_evidence import (
    MAX_REPEATED_FAILURES,
    choose_repeated_items,
    explain_unconfirmed,
)
from harness.runs.eval.runner import begin_evaluation
from harness.runs.eval.token_divergence import TokenOutput
from harness.store.eval.values import Evaluation, ItemAnswer, RepeatedRun, ServedConfiguration

REPETITIONS = REQUIRED_FAILURES - 1
ITEMS = 8  # of each of two tasks
ALL_ITEMS = 2 * ITEMS
# Wrong from the ninth request since the cache was emptied: every item of the second task is.
UNDER_LOAD = {"wrong": [1, 1], "wrong_after": ITEMS}


@pytest.mark.parametrize(
    ("failures", "reason"),
    [
        (["the server died"] * REPETITIONS, ""),
        (["the server died", "out of memory: 9 GiB", "the server died"], "lacked memory"),
        (["UncheckableKernel: no loop", "", ""], "the checker of kernels refused one"),
    ],
)
def test_a_repetition_that_lacks_memory_is_no_evidence(failures: list[str], reason: str) -> None:
    base = ServedConfiguration("one", "llama", "current", [], "cuda")
    base.repeated = [RepeatedRun([]) for _ in range(REPETITIONS)]
    served = ServedConfiguration("one without 1", "llama", "current", [], "cuda")
    served.failure = "the server died"
    served.repeated = [RepeatedRun([], failure) for failure in failures]
    why = explain_unconfirmed(base, served, lambda *_: False)
    assert reason in why
    assert bool(why) == bool(reason)


def run_fault(fakes: Fakes, with_fault: dict[str, Any], without: dict[str, Any]) -> Evaluation:
    """Evaluate a fault over two tasks, one request at a time; see `count_requests`."""
    with_fault = with_fault | {"record": str(fakes.root / "with")}
    one = make_fake(
        *("one", "", "base"),
        without={"toy-plain": with_fault},
        **(without | {"record": str(fakes.root / "without")}),
    )
    one.environment = {"PYTHONPATH": str(TOY)}
    faults = [FaultPlacement(["one"], revert="toy-plain")]
    settings: dict[str, Any] = {"tasks": ["recall", "shared"], "concurrency": 1}
    return fakes.run(make_fake("base"), one, faults=faults, items=ITEMS, **settings)


def list_prompts(fakes: Fakes, side: str) -> list[str]:
    return [json.loads(line)["prompt"] for line in (fakes.root / side).read_text().splitlines()]


def test_a_fault_that_shows_only_under_load_is_caught(fakes: Fakes) -> None:
    """Both sides are asked what the first run asked."""
    evaluation = run_fault(fakes, UNDER_LOAD, {})
    [fault] = evaluation.faults
    assert fault.caught, fault.unconfirmed
    prompts = list_prompts(fakes, "with")
    few = prompts[ALL_ITEMS : -REQUIRED_FAILURES * ALL_ITEMS]
    assert 0 < len(few) < ITEMS  # one small repetition, which did not show it
    first = prompts[:ALL_ITEMS]
    assert prompts[-REQUIRED_FAILURES * ALL_ITEMS :] == first * REQUIRED_FAILURES
    assert list_prompts(fakes, "without")[-REQUIRED_PASSES * ALL_ITEMS :] == first * REQUIRED_PASSES


def test_a_fault_that_fails_without_it_under_load_is_not_caught(fakes: Fakes) -> None:
    """Without the fault, all answers are right until the items are repeated."""
    noise = 2 * max(2, ITEMS // 3)
    wrong_at_last = UNDER_LOAD | {"wrong_between": [ALL_ITEMS + noise + 1, 10**9]}
    evaluation = run_fault(fakes, UNDER_LOAD | {"wrong_between": [1, 10**9]}, wrong_at_last)
    [fault] = evaluation.faults
    assert not fault.caught
    assert fault.unconfirmed == "it failed 4 of 4 times with the bug and 3 of 3 times without it"


def test_a_death_is_repeated_without_the_fault_over_all_items(fakes: Fakes) -> None:
    evaluation = run_fault(fakes, {"dies_at": ALL_ITEMS - 1}, {})
    assert evaluation.faults[0].caught, evaluation.faults[0].unconfirmed
    first = list_prompts(fakes, "without")[:ALL_ITEMS]
    assert list_prompts(fakes, "without")[-REQUIRED_PASSES * ALL_ITEMS :] == first * REQUIRED_PASSES


def test_a_server_that_never_got_ready_is_no_reason_to_ask_all_items(fakes: Fakes) -> None:
    evaluation = run_fault(fakes, {"stillborn": True}, {})
    assert evaluation.faults[0].caught, evaluation.faults[0].unconfirmed
    repeated = evaluation.find_configuration("one").repeated
    assert [len(run.answers) for run in repeated] == [ALL_ITEMS // 2] * REQUIRED_PASSES


# The evidence


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
def comparer(fakes: Fakes) -> EvaluationComparer:
    matrix = MatrixFile("fake", [make_fake("base")], tasks=["recall"], items=2, device="cpu")
    evaluation = begin_evaluation(matrix, fakes.where(), "eval-fake", "unfix eval")
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
