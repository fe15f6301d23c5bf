"""The evidence that a planted fault shows: it has to fail again, and to pass without the fault.

The standard is that of a proof (`guards/verdicts`). What failed is repeated in the server that is
up: items that were answered wrongly are asked again with an empty cache, `REQUIRED_FAILURES` times
with the fault and `REQUIRED_PASSES` times in the same configuration without it. A server that died
or hung is started again with the fault. Example: with the fault items 2, 5, 6, 9, 11, 14 and 30 of
`recall` are answered wrongly. Items 0 to 14 are asked four more times with it, and three more times
without it.

A few items are less load than all of them: fewer batches, fewer pages in use. If one of these
repetitions has no wrong answer, they count for nothing, and all items of the first run are asked
again as often, in its order, at its concurrency, with the fault and without it. The second try has
the standard of the first: of a run that errs by chance at a rate p, on both sides alike, two tries
make a fault with a chance of at most 2 p^5 (1 - p)^4, which is below 1 in 200 for every p.

Where no answer was wrong, tokens alone may differ. Which ones is known when the configuration
without the fault was served, and the server with it is gone: the first items of each task are asked
again, and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from harness.guards.verdicts import explain_weak_evidence
from harness.store.eval.values import ItemAnswer, RepeatedRun, ServedConfiguration

# Failing items that are asked again. A fault of batches hits other items each time: of a fault that
# fails one item of ten, two repetitions of four had no wrong answer when two failing items decided.
MAX_REPEATED_FAILURES = 6
MAX_REPEATED_ITEMS = 4  # items of a task that are asked again where no answer is wrong
ItemsByTask = dict[str, list[int]]
# Failures of a server that say nothing of the fault, each with the reason.
NO_EVIDENCE_PHRASES = {
    "out of memory": "the server lacked memory, which is the machine's",
    "UncheckableKernel": "the checker of kernels refused one, which says nothing of its result",
    "the check checked nothing": "no kernel was checked",
}


def choose_repeated_items(
    items_by_task: Mapping[str, list[int]], answers: Iterable[ItemAnswer]
) -> ItemsByTask:
    """Choose the items to ask again: of one task, up to its sixth failing item.

    The items before them belong to it: a prefix of theirs may have to lie in the cache. Where none
    is wrong, only tokens may differ: the first items of each task.
    """
    failing: ItemsByTask = {}
    for answer in answers:
        if not answer.right:
            failing.setdefault(answer.task, []).append(answer.number)
    if not failing:
        return {task: items[:MAX_REPEATED_ITEMS] for task, items in items_by_task.items()}
    task = max(failing, key=lambda task: len(failing[task]))
    last = sorted(failing[task])[:MAX_REPEATED_FAILURES][-1]
    return {task: [number for number in items_by_task[task] if number <= last]}


def is_load_missing(served: ServedConfiguration) -> bool:
    """Return whether a fault whose first run had wrong answers has a repetition without any."""
    if all(answer.right for answer in served.answers):
        return False
    return any(all(answer.right for answer in run.answers) for run in served.repeated)


def choose_base_items(items_by_task: ItemsByTask, served: ServedConfiguration) -> ItemsByTask:
    """Choose what a configuration is asked without a fault: what repetitions with it were asked.

    A server that died or hung is served again with all its items. One that never got ready was
    asked nothing, and a few items say that the configuration without the fault does.
    """
    if served.failure:
        few = choose_repeated_items(items_by_task, [])
        return items_by_task if served.answers else few
    repeated_items = {(one.task, one.number) for run in served.repeated for one in run.answers}
    chosen = {
        task: [number for number in numbers if (task, number) in repeated_items]
        for task, numbers in items_by_task.items()
    }
    return {task: numbers for task, numbers in chosen.items() if numbers}


def merge_items(choices: Iterable[Mapping[str, list[int]]]) -> ItemsByTask:
    merged: dict[str, set[int]] = {}
    for choice in choices:
        for task, numbers in choice.items():
            merged.setdefault(task, set()).update(numbers)
    return {task: sorted(numbers) for task, numbers in merged.items()}


def explain_failure_without_evidence(failure: str) -> str:
    """Explain why a failure of a server says nothing of a planted fault; '' if it does."""
    return next((why for phrase, why in NO_EVIDENCE_PHRASES.items() if phrase in failure), "")


def explain_unconfirmed(
    base: ServedConfiguration,
    served: ServedConfiguration,
    is_failing: Callable[[ServedConfiguration, ServedConfiguration], bool],
) -> str:
    """Explain why what was seen with a fault is no evidence that it shows; '' if it is.

    `is_failing` compares a run with the configuration without the fault.
    """
    failures = [served.failure, *(run.failure for run in served.repeated)]
    if why := next(filter(None, map(explain_failure_without_evidence, failures)), ""):
        return why
    failed_with = [
        bool(run.failure) or is_failing(base, _as_served(served, run)) for run in served.repeated
    ]
    if served.failure:
        failed_with.insert(0, True)
    items = {(one.task, one.number) for run in served.repeated for one in run.answers}
    failed_without = [
        bool(run.failure) or is_failing(base, _as_served(base, run, items)) for run in base.repeated
    ]
    return explain_weak_evidence(failed_with, failed_without)


def _as_served(
    served: ServedConfiguration, run: RepeatedRun, items: set[tuple[str, int]] | None = None
) -> ServedConfiguration:
    """Return a repeated run as a configuration, with these items alone if some are among them."""
    answers = [one for one in run.answers if items and (one.task, one.number) in items]
    return msgspec.structs.replace(served, answers=answers or run.answers, failure=run.failure)
