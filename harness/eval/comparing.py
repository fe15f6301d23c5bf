"""What two servers that were asked the same come to: accuracy item by item, tokens one by one."""

from __future__ import annotations

import math

from harness.errors import UnfixError
from harness.eval import lossless, paired
from harness.store.eval.values import Answer, Compared, Difference, Judged, Served

SHOWN = 200  # differences kept of a comparison


def _by_item(answers: list[Answer]) -> dict[str, Answer]:
    return {f"{answer.task}:{answer.number}": answer for answer in answers}


def _same_items(base: dict[str, Answer], candidate: dict[str, Answer]) -> None:
    for key in base.keys() & candidate.keys():
        if (base[key].prompt, base[key].target) != (candidate[key].prompt, candidate[key].target):
            raise paired.DifferentItems(f"base and candidate were asked different things as {key}")


def accuracy(
    base: Served, candidate: Served, task: str, *, cells: int, tolerance: float
) -> Compared:
    """Whether the candidate answers as many items rightly, over those that both were asked."""
    first, second = _by_item(base.of(task)), _by_item(candidate.of(task))
    _same_items(first, second)
    strange = sorted(second.keys() - first.keys())
    if strange:
        raise paired.DifferentItems(f"the base was never asked {strange[0]}")
    common = {key: first[key] for key in second}  # a clear difference stops early
    pair = paired.Pair.of(
        {key: one.right for key, one in common.items()},
        {key: one.right for key, one in second.items()},
    )
    if common and not any(one.right is not False for one in [*common.values(), *second.values()]):
        said = (
            f"{Judged.NA}: neither answers any of {len(common)} items rightly, so none can be lost"
        )
        return Compared(base.name, candidate.name, "accuracy", task, Judged.NA, said)
    judged = paired.judge(pair, cells=cells, tolerance=tolerance)
    differences = []
    for key, one in common.items():
        other = second[key]
        if one.error or other.error:
            differences.append(Difference(one.task, one.number, "error"))
        elif one.right != other.right:
            why = "lost" if one.right else "gained"
            at = lossless.parting(one.tokens, other.tokens)
            differences.append(Difference(one.task, one.number, why, at))
    return Compared(
        base.name,
        candidate.name,
        "accuracy",
        task,
        Judged(str(judged.verdict)),
        str(judged),
        items=pair.items,
        lost=pair.lost,
        gained=pair.gained,
        errors=pair.errors,
        drop=judged.drop,
        low=judged.low,
        high=judged.high,
        p=judged.p,
        differences=differences[:SHOWN],
    )


def tokens(
    base: Served,
    candidate: Served,
    *,
    dtype: str,
    alike: bool = False,
    truth: Served | None = None,
    exact: bool = False,
) -> Compared:
    """Whether what must not change an answer changed one, over all tasks that both were asked."""
    first, second = _by_item(base.answers), _by_item(candidate.answers)
    _same_items(first, second)
    again = _by_item(base.again)
    found = lossless.divergence(
        {key: _output(first[key]) for key in first.keys() & second.keys()} if second else {},
        {key: _output(one) for key, one in again.items() if key in second},
        {key: _output(one) for key, one in second.items()},
        dtype=dtype,
        alike=alike,
        truth={key: _output(one) for key, one in _by_item(truth.answers).items()}
        if truth
        else None,
        exact=exact,
    )
    differences = []
    for key, one in found.items.items():
        if one.verdict is not lossless.Verdict.EQUAL:
            answer = second[key]
            differences.append(
                Difference(answer.task, answer.number, str(one.verdict), one.position, one.largest)
            )
    for key in found.errors:
        differences.append(Difference(second[key].task, second[key].number, "error"))
    every = [one for one in found.items.values() if one.largest is not None]
    logprobs = max((one.largest for one in every if one.largest is not None), default=None)
    leads = max((one.margin for one in every if one.margin is not None), default=None)
    noise, farthest = found.noise.largest, logprobs
    if leads is not None and leads / found.noise.margin >= (logprobs or 0.0) / noise:
        noise, farthest = found.noise.margin, leads
    return Compared(
        base.name,
        candidate.name,
        "tokens",
        "",
        Judged(str(found.verdict)),
        str(found),
        items=len(found.items) + len(found.errors),
        lost=sum(one.verdict is lossless.Verdict.DIFFERS for one in found.items.values()),
        errors=len(found.errors),
        noise=noise,
        divergence=farthest,
        mean_divergence=max((one.mean for one in every if one.mean is not None), default=None),
        differences=differences[:SHOWN],
    )


def cannot_be(base: Served, candidate: Served, kind: str, task: str, why: str) -> Compared:
    """The two cannot be held against each other; nobody knows how they differ."""
    said = f"{Judged.CANNOT_TELL}: {why}"
    return Compared(base.name, candidate.name, kind, task, Judged.CANNOT_TELL, said)


def failed(base: Served, candidate: Served, kind: str) -> Compared:
    """One of the two was not there, or not to the end."""
    who = candidate if candidate.failure or not candidate.answers else base
    hung = who.failure.startswith(f"{Judged.HANG}:")
    return Compared(
        base.name,
        candidate.name,
        kind,
        "",
        (Judged.HANG if hung else Judged.FAILED) if who is candidate else Judged.CANNOT_TELL,
        f"{who.name}: {who.failure or who.absent or 'no answers'}",
        errors=sum(bool(answer.error) for answer in who.answers),
    )


def _output(answer: Answer) -> lossless.Output:
    count = len(answer.tokens)
    logprobs = [math.nan if value is None else value for value in answer.logprobs]
    known = len(answer.margins) == count and all(one is not None for one in answer.margins)
    if len(logprobs) not in (0, count):
        raise UnfixError(f"{answer.task}:{answer.number}: {count} tokens, {len(logprobs)} logprobs")
    return lossless.Output(
        answer.tokens,
        logprobs if count and len(logprobs) == count else None,
        [one for one in answer.margins if one is not None] if known and count else None,
        answer.error,
    )
