"""Compares the answers of two servers to the same items, by accuracy or token by token."""

from __future__ import annotations

import math

from harness.core.errors import UnfixError
from harness.core.outcomes import Verdict
from harness.runs.eval import paired_statistics, token_divergence
from harness.store.eval.values import (
    AnswerDifference,
    ComparisonResult,
    ItemAnswer,
    ServedConfiguration,
)

MAX_DIFFERENCES = 200  # stored differences of a comparison


def _index_by_item(answers: list[ItemAnswer]) -> dict[str, ItemAnswer]:
    return {f"{answer.task}:{answer.number}": answer for answer in answers}


def _require_same_items(base: dict[str, ItemAnswer], candidate: dict[str, ItemAnswer]) -> None:
    for key in base.keys() & candidate.keys():
        if (base[key].prompt, base[key].target) != (candidate[key].prompt, candidate[key].target):
            raise paired_statistics.DifferentItemsError(
                f"base and candidate were asked different things as {key}"
            )


def compare_accuracy(
    base: ServedConfiguration,
    candidate: ServedConfiguration,
    task: str,
    *,
    comparison_count: int,
    tolerance: float,
) -> ComparisonResult:
    """Compare the accuracy of two servers on the items that both received."""
    first, second = (
        _index_by_item(base.select_answers(task)),
        _index_by_item(candidate.select_answers(task)),
    )
    _require_same_items(first, second)
    unknown = sorted(second.keys() - first.keys())
    if unknown:
        raise paired_statistics.DifferentItemsError(f"the base was never asked {unknown[0]}")
    common = {key: first[key] for key in second}  # the candidate may have stopped early
    pair = paired_statistics.PairedCounts.from_answers(
        {key: one.right for key, one in common.items()},
        {key: one.right for key, one in second.items()},
    )
    if common and not any(one.right is not False for one in [*common.values(), *second.values()]):
        verdict = Verdict.CANNOT_TELL
        text = f"{verdict}: neither answers any of {len(common)} items rightly, so none can be lost"
        return ComparisonResult(base.name, candidate.name, "accuracy", task, verdict, text)
    judged = paired_statistics.judge_pair(
        pair, comparison_count=comparison_count, tolerance=tolerance
    )
    differences = []
    for key, one in common.items():
        other = second[key]
        if one.error or other.error:
            differences.append(AnswerDifference(one.task, one.number, "error"))
        elif one.right != other.right:
            why = "lost" if one.right else "gained"
            at = token_divergence.find_first_difference(one.tokens, other.tokens)
            differences.append(AnswerDifference(one.task, one.number, why, at))
    return ComparisonResult(
        base.name,
        candidate.name,
        "accuracy",
        task,
        judged.verdict,
        str(judged),
        items=pair.items,
        lost=pair.lost,
        gained=pair.gained,
        errors=pair.errors,
        drop=judged.drop,
        low=judged.low,
        high=judged.high,
        p=judged.mcnemar_p,
        differences=differences[:MAX_DIFFERENCES],
    )


def compare_tokens(
    base: ServedConfiguration,
    candidate: ServedConfiguration,
    *,
    dtype: str,
    same_but_toggles: bool = False,
    float32_reference: ServedConfiguration | None = None,
    base_is_reference: bool = False,
) -> ComparisonResult:
    """Compare the candidate's tokens with the base's, over all tasks that both received."""
    first, second = _index_by_item(base.answers), _index_by_item(candidate.answers)
    _require_same_items(first, second)
    again = _index_by_item(base.again)
    divergence = token_divergence.compare_outputs(
        {key: _to_token_output(first[key]) for key in first.keys() & second.keys()}
        if second
        else {},
        {key: _to_token_output(one) for key, one in again.items() if key in second},
        {key: _to_token_output(one) for key, one in second.items()},
        dtype=dtype,
        same_but_toggles=same_but_toggles,
        float32_reference={
            key: _to_token_output(one)
            for key, one in _index_by_item(float32_reference.answers).items()
        }
        if float32_reference
        else None,
        base_is_reference=base_is_reference,
    )
    differences = []
    for key, one in divergence.items.items():
        if one.verdict is not Verdict.EQUAL:
            answer = second[key]
            differences.append(
                AnswerDifference(
                    answer.task, answer.number, str(one.verdict), one.position, one.largest
                )
            )
    for key in divergence.errors:
        differences.append(AnswerDifference(second[key].task, second[key].number, "error"))
    every = [one for one in divergence.items.values() if one.largest is not None]
    logprobs = max((one.largest for one in every if one.largest is not None), default=None)
    leads = max((one.margin for one in every if one.margin is not None), default=None)
    noise, farthest = divergence.noise.largest, logprobs
    if leads is not None and leads / divergence.noise.margin >= (logprobs or 0.0) / noise:
        noise, farthest = divergence.noise.margin, leads
    return ComparisonResult(
        base.name,
        candidate.name,
        "tokens",
        "",
        divergence.verdict,
        str(divergence),
        items=len(divergence.items) + len(divergence.errors),
        lost=divergence.counts[Verdict.DIFFERS],
        errors=len(divergence.errors),
        noise=noise,
        divergence=farthest,
        mean_divergence=max((one.mean for one in every if one.mean is not None), default=None),
        differences=differences[:MAX_DIFFERENCES],
    )


def make_failed_comparison(
    base: ServedConfiguration, candidate: ServedConfiguration, kind: str
) -> ComparisonResult:
    """Make the verdict where one of the two failed or gave no answers."""
    failed = candidate if candidate.failure or not candidate.answers else base
    hung = failed.failure.startswith(f"{Verdict.HANG}:")
    return ComparisonResult(
        base.name,
        candidate.name,
        kind,
        "",
        (Verdict.HANG if hung else Verdict.FAILS) if failed is candidate else Verdict.CANNOT_TELL,
        f"{failed.name}: {failed.failure or failed.absent or 'no answers'}",
        errors=sum(bool(answer.error) for answer in failed.answers),
    )


def _to_token_output(answer: ItemAnswer) -> token_divergence.TokenOutput:
    count = len(answer.tokens)
    logprobs = [math.nan if value is None else value for value in answer.logprobs]
    known = len(answer.margins) == count and all(one is not None for one in answer.margins)
    if len(logprobs) not in (0, count):
        raise UnfixError(f"{answer.task}:{answer.number}: {count} tokens, {len(logprobs)} logprobs")
    return token_divergence.TokenOutput(
        answer.tokens,
        logprobs if count and len(logprobs) == count else None,
        [one for one in answer.margins if one is not None] if known and count else None,
        answer.error,
    )
