"""Items on which two servers differ, side by side, with the first token that differs marked."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.store.eval.values import AnswerDifference, ComparisonResult, Evaluation, ItemAnswer
from reports.eval import view
from reports.shared import formatting

MAX_ITEMS = 20  # items of one comparison; the others are counted
MAX_PAGE_LETTERS = 1_000_000  # letters of all items on a page
PROMPT_LENGTH = 320
TARGET_LENGTH = 120
CONTEXT_LENGTH = 120  # letters on each side of the marked token
ERROR_LENGTH = 300
DIFFERENCE_TONES = {
    "lost": "broken",
    "gained": "fix",
    "differs": "broken",
    "drifts": "toothless",
    "near-tie": "good",
    "error": "death",
}


@dataclass(frozen=True)
class AnswerExcerpt:
    """One answer: the equal start, the first token that differs, the rest."""

    before: str
    differing_token: str
    after: str
    error: str = ""

    @property
    def size(self) -> int:
        return sum(len(html.escape(part)) for part in vars(self).values())


@dataclass(frozen=True)
class DifferingItem:
    difference: AnswerDifference
    prompt: str
    target: str
    base: AnswerExcerpt
    candidate: AnswerExcerpt
    facts: list[str]

    @property
    def tone(self) -> str:
        return DIFFERENCE_TONES.get(self.difference.why, "unreached")

    @property
    def size(self) -> int:
        """The number of letters on a page, with the frame."""
        return (
            len(html.escape(self.prompt + self.target))
            + self.base.size
            + self.candidate.size
            + sum(map(len, self.facts))
            + 600
        )


def choose_items(
    evaluation: Evaluation, compared: Sequence[ComparisonResult]
) -> list[list[DifferingItem]]:
    """Choose the first differences of each comparison, as many of each if space is short."""
    answers = {
        served.name: {(answer.task, answer.number): answer for answer in served.answers}
        for served in evaluation.served
    }
    chosen: list[list[DifferingItem]] = [[] for _ in compared]
    letters = 0
    for place in range(MAX_ITEMS):
        for comparison, items in zip(compared, chosen, strict=True):
            if place < len(comparison.differences):
                difference = comparison.differences[place]
                key = difference.task, difference.number
                base = answers.get(comparison.base, {}).get(key)
                candidate = answers.get(comparison.candidate, {}).get(key)
                item = _make_item(difference, base, candidate)
                letters += item.size
                if letters > MAX_PAGE_LETTERS:
                    return chosen
                items.append(item)
    return chosen


def _make_item(
    difference: AnswerDifference, base: ItemAnswer | None, candidate: ItemAnswer | None
) -> DifferingItem:
    answer = base or candidate
    facts: list[str] = []
    if base is None or candidate is None or base.error or candidate.error:
        sides = [_make_whole_excerpt(one) for one in (base, candidate)]
    else:
        at = _find_difference(base, candidate, difference)
        if _has_text_tokens(base) and _has_text_tokens(candidate):
            pairs = [(one.tokens, at) for one in (base, candidate)]
        else:
            letter = _find_first_mismatch(base.text, candidate.text)
            pairs = [(list(answer.text), letter) for answer in (base, candidate)]
        longest = max(len(pieces) for pieces, _ in pairs)
        sides = [_make_excerpt(pieces, where, where < longest) for pieces, where in pairs]
        facts = _describe_token(base, candidate, at)
    if difference.divergence is not None:
        facts.append(f"largest difference of a logprob {view.format_number(difference.divergence)}")
    return DifferingItem(
        difference,
        formatting.shorten_text(answer.prompt, PROMPT_LENGTH) if answer else "",
        formatting.shorten_text(answer.target, TARGET_LENGTH) if answer else "",
        sides[0],
        sides[1],
        facts,
    )


def _find_difference(base: ItemAnswer, candidate: ItemAnswer, difference: AnswerDifference) -> int:
    """Find the index of the first token that differs, else of the most distant logprobs."""
    if difference.at is not None and difference.at >= 0:
        return difference.at
    at = _find_first_mismatch(base.tokens, candidate.tokens)
    if at < max(len(base.tokens), len(candidate.tokens)) or difference.why != "drifts":
        return at
    apart = [
        math.inf if one is None or other is None or math.isnan(one - other) else abs(one - other)
        for one, other in zip(base.logprobs, candidate.logprobs, strict=False)
    ]
    return apart.index(max(apart)) if apart else at


def _find_first_mismatch(left: Sequence[str], right: Sequence[str]) -> int:
    for at, (mine, others) in enumerate(zip(left, right, strict=False)):
        if mine != others:
            return at
    return min(len(left), len(right))


def _has_text_tokens(answer: ItemAnswer) -> bool:
    """Return whether the tokens are pieces of the text; some servers give numbers."""
    return bool(answer.tokens) and answer.text in "".join(answer.tokens)


def _make_whole_excerpt(answer: ItemAnswer | None) -> AnswerExcerpt:
    if answer is None:
        return AnswerExcerpt("", "", "", "no such answer")
    error = formatting.shorten_text(answer.error, ERROR_LENGTH)
    return AnswerExcerpt(formatting.shorten_text(answer.text, 2 * CONTEXT_LENGTH), "", "", error)


def _make_excerpt(pieces: Sequence[str], index: int, marked: bool) -> AnswerExcerpt:
    before = formatting.make_visible("".join(pieces[:index]))
    after = formatting.make_visible("".join(pieces[index + 1 :]))
    if len(before) > CONTEXT_LENGTH:
        before = f"… {before[-CONTEXT_LENGTH:]}"
    if len(after) > CONTEXT_LENGTH:
        after = f"{after[:CONTEXT_LENGTH]} …"
    mark = _make_token_visible("".join(pieces[index : index + 1])) if marked else ""
    return AnswerExcerpt(before, mark, after)


def _make_token_visible(token: str) -> str:
    """Return a token with a sign for each blank, and '∎' for the end of the answer."""
    shown = formatting.shorten_text(token, 40).replace("\n", "⏎").replace("\t", "⇥")
    return shown if shown.strip() else "␣" * len(shown) or "∎"


def _describe_token(base: ItemAnswer, candidate: ItemAnswer, index: int) -> list[str]:
    facts = []
    ends = [answer.tokens[index : index + 1] for answer in (base, candidate)]
    both_have_tokens = bool(base.tokens and candidate.tokens)
    if both_have_tokens and ends[0] != ends[1]:
        base_token, candidate_token = (_make_token_visible("".join(end)) for end in ends)
        facts.append(f"token {index}: {base_token} became {candidate_token}")
    elif both_have_tokens and ends[0]:
        facts.append(f"token {index}: {_make_token_visible(ends[0][0])} in both")
    pair = [logprob for answer in (base, candidate) for logprob in answer.logprobs[index:][:1]]
    if len(pair) == 2:
        mine, others = pair
        change = None if mine is None or others is None else others - mine
        by = f" ({change:+.3g})" if change is not None and math.isfinite(change) else ""
        facts.append(f"logprob {_format_logprob(mine)} became {_format_logprob(others)}{by}")
    margin = base.margins[index] if index < len(base.margins) else None
    if margin is not None:
        facts.append(f"the base's margin was {margin:.3g}")
    return facts


def _format_logprob(value: float | None) -> str:
    return "no number" if value is None or math.isnan(value) else f"{value:.3g}"
