"""Sample evaluations: a green one, one with every problem and hostile text, the largest."""

from __future__ import annotations

import math

from harness.core.outcomes import RunStatus, Verdict
from harness.store.eval.values import (
    AnswerDifference,
    ComparisonResult,
    Evaluation,
    ItemAnswer,
    PlantedFault,
    ServedConfiguration,
)

HOSTILE = (
    "<script>document.title='owned'</script> | `x` \x1b[31m\"'&]]> {{ 7 * 7 }} \x00\ud800\nnext"
)
LONG = "y" * 5000
NO_CUDA = "no CUDA device is here"
TASKS = ("recall", "copying", "needle", "shared")


def make_answer(task: str, number: int, text: str = "abcd", right: bool = True) -> ItemAnswer:
    count = len(text)
    return ItemAnswer(
        task, number, f"what follows {number}?", "abcd", text, right,
        tokens=list(text), logprobs=[-0.25] * count, margins=[2.0] * count,
    )  # fmt: skip


def make_served(name: str, *, wrong: int = 0, items: int = 20) -> ServedConfiguration:
    answers = [
        make_answer(task, n, "abXd" if n < wrong else "abcd", n >= wrong)
        for task in TASKS
        for n in range(items)
    ]
    words = ["--attention-backend", "triton"]
    return ServedConfiguration(name, "llama", "0.5.18", words, "cpu", ready=12.5, answers=answers)


def make_accuracy(
    base: str, candidate: str, task: str, lost: int = 0, items: int = 20
) -> ComparisonResult:
    verdict = Verdict.REGRESSED if lost else Verdict.SAME
    drop = lost / items
    return ComparisonResult(
        base, candidate, "accuracy", task, verdict, f"{verdict}: {lost} of {items} lost",
        items=items, lost=lost, drop=drop, low=drop - 0.04, high=drop + 0.04,
        differences=[AnswerDifference(task, n, "lost", 2) for n in range(lost)],
    )  # fmt: skip


def make_token_result(
    base: str, candidate: str, verdict: Verdict, divergence: float | None
) -> ComparisonResult:
    words = f"{verdict}: 80 items"
    return ComparisonResult(
        base, candidate, "tokens", "", verdict, words, items=80, noise=0.01, divergence=divergence
    )


def make_fine_evaluation() -> Evaluation:
    """Return a green evaluation: three configurations, and two faults, the planted one detected."""
    return Evaluation(
        "eval-20261121-000000-abcd", "cpu", "unfix eval cpu", 1795219200.0, 75.0,
        RunStatus.FINISHED,
        "cpu", 0, 20, 0.01, 8, 0.096,
        served=[
            make_served("base"), make_served("cache"), make_served("cache without paged"),
            ServedConfiguration("fp8", "llama", "0.5.18", [], "cuda", absent=NO_CUDA),
        ],
        compared=[
            *(make_accuracy("base", "cache", task) for task in TASKS),
            make_token_result("base", "cache", Verdict.EQUAL, 0.004),
            make_token_result("base", "cache without paged", Verdict.DIFFERS, 1.7),
            ComparisonResult("base", "fp8", "tokens", "", Verdict.NA, NO_CUDA),
        ],
        faults=[
            PlantedFault("paged", "cache", "cache without paged", True, True, ["tokens: differs"],
                  "other words", 16),
            PlantedFault("quiet", "cache", "cache without quiet", False, False, [], "nothing", 3),
        ],
        machine={"cpu": "a CPU"},
    )  # fmt: skip


def make_awful_evaluation() -> Evaluation:
    """Return every problem at once, with hostile text in every field."""
    evaluation = make_fine_evaluation()
    evaluation.name = evaluation.command = evaluation.device = HOSTILE
    evaluation.machine = {HOSTILE: HOSTILE}
    bad = make_served(HOSTILE, wrong=3)
    bad.stand_ins, bad.words, bad.revert = [HOSTILE, LONG], [HOSTILE], [HOSTILE]
    bad.accepted = 2.345
    bad.answers[0] = ItemAnswer("recall", 0, HOSTILE * 30, HOSTILE, LONG + HOSTILE, False)
    bad.answers[1].error, bad.answers[1].right = HOSTILE, None
    bad.answers[2].logprobs = [-0.25, -0.25, None, math.nan]
    drifting = make_served("drifting")
    drifting.answers[5].logprobs = [-0.25, -1.5, -0.25, -0.25]
    evaluation.served += [
        bad,
        drifting,
        ServedConfiguration("dead", "llama", "0.5.18", [], "cpu", failure=HOSTILE + LONG),
        ServedConfiguration("silent", "llama", "0.5.18", [], "cpu"),
    ]
    lost = make_accuracy("base", HOSTILE, "recall", 3)
    lost.words = HOSTILE + LONG
    lost.differences[1].why = "error"
    lost.differences.append(AnswerDifference(HOSTILE, 99, HOSTILE))
    drifts = make_token_result("base", "drifting", Verdict.DRIFTS, math.inf)
    drifts.differences = [AnswerDifference("recall", 5, "drifts", None, math.nan)]
    evaluation.compared += [
        lost,
        drifts,
        ComparisonResult("base", "dead", "tokens", "", Verdict.FAILS, HOSTILE),
        ComparisonResult("nobody", HOSTILE, "tokens", HOSTILE, Verdict.CANNOT_TELL, LONG),
    ]
    evaluation.faults += [
        PlantedFault(HOSTILE, HOSTILE, "x", True, False, [], HOSTILE, 7),
        PlantedFault("never", "cache", "y", True, False, [], "", 0),
        PlantedFault("gone", "cache", "z", False, False, [], "", 0, absent=HOSTILE),
    ]
    return evaluation


def make_large_evaluation(configurations: int = 30, items: int = 200) -> Evaluation:
    """Return the maximum of configurations, each of which differs everywhere from the base."""
    evaluation = make_fine_evaluation()
    evaluation.served, evaluation.compared, evaluation.faults = (
        [make_served("base", items=items)],
        [],
        [],
    )
    for one in evaluation.served:
        for item in one.answers:
            item.prompt = "<k&v> " * 60
    for place in range(1, configurations):
        name = f"configuration-{place}-of-many"
        candidate = make_served(name, items=items, wrong=items)
        evaluation.served.append(candidate)
        evaluation.compared += [make_accuracy("base", name, task, items, items) for task in TASKS]
        apart = make_token_result("base", name, Verdict.DIFFERS, 10.0 ** (place % 9 - 6))
        apart.differences = [
            AnswerDifference(t, n, "differs", 2, 0.5) for t in TASKS for n in range(50)
        ]
        evaluation.compared.append(apart)
        evaluation.faults += [
            PlantedFault(f"toggle-{n}", name, f"{name} without {n}", True, n < 4, ["x"], "", 1)
            for n in range(6)
        ]
    return evaluation
