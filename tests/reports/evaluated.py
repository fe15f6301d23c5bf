"""Made-up evaluations: all that may go wrong, and one as large as they get."""

from __future__ import annotations

import math

from harness.store.eval.values import (
    Answer,
    Compared,
    Difference,
    Evaluation,
    Fault,
    Judged,
    Served,
)

HOSTILE = (
    "<script>document.title='owned'</script> | `x` \x1b[31m\"'&]]> {{ 7 * 7 }} \x00\ud800\nnext"
)
LONG = "y" * 5000
TASKS = ("recall", "copying", "needle", "shared")


def answer(task: str, number: int, text: str = "abcd", right: bool = True) -> Answer:
    count = len(text)
    return Answer(
        task, number, f"what follows {number}?", "abcd", text, right,
        tokens=list(text), logprobs=[-0.25] * count, margins=[2.0] * count,
    )  # fmt: skip


def served(name: str, *, wrong: int = 0, items: int = 20, tasks: tuple[str, ...] = TASKS) -> Served:
    answers = [
        answer(task, n, "abXd" if n < wrong else "abcd", n >= wrong)
        for task in tasks
        for n in range(items)
    ]
    words = ["--attention-backend", "triton"]
    return Served(name, "llama", "0.5.18", words, "cpu", ready=12.5, answers=answers)


def accuracy(base: str, candidate: str, task: str, lost: int = 0, items: int = 20) -> Compared:
    verdict = Judged.REGRESSED if lost else Judged.SAME
    drop = lost / items
    return Compared(
        base, candidate, "accuracy", task, verdict, f"{verdict}: {lost} of {items} lost",
        items=items, lost=lost, drop=drop, low=drop - 0.04, high=drop + 0.04,
        differences=[Difference(task, n, "lost", 2) for n in range(lost)],
    )  # fmt: skip


def tokens(base: str, candidate: str, verdict: Judged, divergence: float | None) -> Compared:
    words = f"{verdict}: 80 items"
    return Compared(
        base, candidate, "tokens", "", verdict, words, items=80, noise=0.01, divergence=divergence
    )


def fine() -> Evaluation:
    """Green: three configurations, and two faults of which one had to be noticed and was."""
    return Evaluation(
        "eval-20261121-000000-abcd", "cpu", "unfix eval cpu", 1795219200.0, 75.0, "done", "cpu",
        0, 20, 0.01, 8, 0.096,
        served=[
            served("base"), served("cache"), served("cache without paged"),
            Served("fp8", "llama", "0.5.18", [], "cuda", absent="no CUDA device is here"),
        ],
        compared=[
            *(accuracy("base", "cache", task) for task in TASKS),
            tokens("base", "cache", Judged.EQUAL, 0.004),
            tokens("base", "cache without paged", Judged.DIFFERS, 1.7),
            Compared("base", "fp8", "tokens", "", Judged.NA, "no CUDA device is here"),
        ],
        faults=[
            Fault("paged", "cache", "cache without paged", True, True, ["tokens: differs"],
                  "other words", 16),
            Fault("quiet", "cache", "cache without quiet", False, False, [], "nothing", 3),
        ],
        machine={"cpu": "a CPU"},
    )  # fmt: skip


def awful() -> Evaluation:
    """Everything at once that is not well, in the words of somebody who means harm."""
    made = fine()
    made.name = made.command = made.device = HOSTILE
    made.machine = {HOSTILE: HOSTILE}
    bad = served(HOSTILE, wrong=3)
    bad.stand_ins, bad.words, bad.revert = [HOSTILE, LONG], [HOSTILE], [HOSTILE]
    bad.accepted = 2.345
    bad.answers[0] = Answer("recall", 0, HOSTILE * 30, HOSTILE, LONG + HOSTILE, False)
    bad.answers[1].error, bad.answers[1].right = HOSTILE, None
    bad.answers[2].logprobs = [-0.25, -0.25, None, math.nan]
    drifting = served("drifting")
    drifting.answers[5].logprobs = [-0.25, -1.5, -0.25, -0.25]
    made.served += [
        bad,
        drifting,
        Served("dead", "llama", "0.5.18", [], "cpu", failure=HOSTILE + LONG),
        Served("silent", "llama", "0.5.18", [], "cpu"),
    ]
    lost = accuracy("base", HOSTILE, "recall", 3)
    lost.words = HOSTILE + LONG
    lost.differences[1].why = "error"
    lost.differences.append(Difference(HOSTILE, 99, HOSTILE))
    drifts = tokens("base", "drifting", Judged.DRIFTS, math.inf)
    drifts.differences = [Difference("recall", 5, "drifts", None, math.nan)]
    made.compared += [
        lost,
        drifts,
        Compared("base", "dead", "tokens", "", Judged.FAILED, HOSTILE),
        Compared("nobody", HOSTILE, "tokens", HOSTILE, Judged.CANNOT_TELL, LONG),
    ]
    made.faults += [
        Fault(HOSTILE, HOSTILE, "x", True, False, [], HOSTILE, 7),
        Fault("never", "cache", "y", True, False, [], "", 0),
        Fault("gone", "cache", "z", False, False, [], "", 0, absent=HOSTILE),
    ]
    return made


def large(configurations: int = 30, items: int = 200) -> Evaluation:
    """As many as there may be, each of them differing everywhere from the base."""
    made = fine()
    made.served, made.compared, made.faults = [served("base", items=items)], [], []
    for one in made.served:
        for item in one.answers:
            item.prompt = "<k&v> " * 60
    for place in range(1, configurations):
        name = f"configuration-{place}-of-many"
        candidate = served(name, items=items, wrong=items)
        made.served.append(candidate)
        made.compared += [accuracy("base", name, task, items, items) for task in TASKS]
        apart = tokens("base", name, Judged.DIFFERS, 10.0 ** (place % 9 - 6))
        apart.differences = [Difference(t, n, "differs", 2, 0.5) for t in TASKS for n in range(50)]
        made.compared.append(apart)
        made.faults += [
            Fault(f"toggle-{n}", name, f"{name} without {n}", True, n < 4, ["x"], "", 1)
            for n in range(6)
        ]
    return made
