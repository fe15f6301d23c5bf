"""Items on which two servers differ, side by side, with the first token that differs marked."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.store.eval.values import Answer, Compared, Difference, Evaluation
from reports.eval import view
from reports.shared import texts

MOST = 20  # of one comparison; the rest is counted
ROOM = 1_000_000  # letters of all of them on a page
PROMPT = 320
TARGET = 120
AROUND = 120  # letters on each side of what is marked
ERROR = 300
TONES = {
    "lost": "broken",
    "gained": "fix",
    "differs": "broken",
    "drifts": "toothless",
    "near-tie": "good",
    "error": "death",
}


@dataclass(frozen=True)
class Told:
    """One answer: alike so far, the first token that is not, the rest."""

    before: str
    mark: str
    after: str
    error: str = ""

    @property
    def size(self) -> int:
        return sum(len(html.escape(part)) for part in vars(self).values())


@dataclass(frozen=True)
class Item:
    difference: Difference
    prompt: str
    target: str
    base: Told
    candidate: Told
    facts: list[str]

    @property
    def tone(self) -> str:
        return TONES.get(self.difference.why, "unreached")

    @property
    def size(self) -> int:
        """What it takes on a page, its frame included."""
        return (
            len(html.escape(self.prompt + self.target))
            + self.base.size
            + self.candidate.size
            + sum(map(len, self.facts))
            + 600
        )


def choose(evaluation: Evaluation, compared: Sequence[Compared]) -> list[list[Item]]:
    """Of each comparison its first differences; where there is no room for all, as many of each."""
    answers = {
        served.name: {(answer.task, answer.number): answer for answer in served.answers}
        for served in evaluation.served
    }
    chosen: list[list[Item]] = [[] for _ in compared]
    room = ROOM
    for place in range(MOST):
        for one, items in zip(compared, chosen, strict=True):
            if place < len(one.differences):
                item = _item(one.differences[place], *_both(one, one.differences[place], answers))
                room -= item.size
                if room < 0:
                    return chosen
                items.append(item)
    return chosen


def _both(
    one: Compared, difference: Difference, answers: dict[str, dict[tuple[str, int], Answer]]
) -> tuple[Answer | None, Answer | None]:
    key = difference.task, difference.number
    return answers.get(one.base, {}).get(key), answers.get(one.candidate, {}).get(key)


def _item(difference: Difference, base: Answer | None, candidate: Answer | None) -> Item:
    asked = base or candidate
    facts: list[str] = []
    if base is None or candidate is None or base.error or candidate.error:
        sides = [_whole(answer) for answer in (base, candidate)]
    else:
        at = _apart(base, candidate, difference)
        if _spelled(base) and _spelled(candidate):
            pairs = [(answer.tokens, at) for answer in (base, candidate)]
        else:
            letter = _first(base.text, candidate.text)
            pairs = [(list(answer.text), letter) for answer in (base, candidate)]
        longest = max(len(pieces) for pieces, _ in pairs)
        sides = [_cut(pieces, where, where < longest) for pieces, where in pairs]
        facts = _facts(base, candidate, at)
    if difference.divergence is not None:
        facts.append(f"largest difference of a logprob {view.number(difference.divergence)}")
    return Item(
        difference,
        texts.shorten(asked.prompt, PROMPT) if asked else "",
        texts.shorten(asked.target, TARGET) if asked else "",
        sides[0],
        sides[1],
        facts,
    )


def _apart(base: Answer, candidate: Answer, difference: Difference) -> int:
    """The token to look at: the first that differs, else that whose logprobs are farthest apart."""
    if difference.at is not None and difference.at >= 0:
        return difference.at
    at = _first(base.tokens, candidate.tokens)
    if at < max(len(base.tokens), len(candidate.tokens)) or difference.why != "drifts":
        return at
    apart = [
        math.inf if one is None or other is None or math.isnan(one - other) else abs(one - other)
        for one, other in zip(base.logprobs, candidate.logprobs, strict=False)
    ]
    return apart.index(max(apart)) if apart else at


def _first(one: Sequence[str], other: Sequence[str]) -> int:
    for at, (mine, others) in enumerate(zip(one, other, strict=False)):
        if mine != others:
            return at
    return min(len(one), len(other))


def _spelled(answer: Answer) -> bool:
    """Whether its tokens are pieces of its text, and no numbers."""
    return bool(answer.tokens) and answer.text in "".join(answer.tokens)


def _whole(answer: Answer | None) -> Told:
    if answer is None:
        return Told("", "", "", "no such answer")
    error = texts.shorten(answer.error, ERROR)
    return Told(texts.shorten(answer.text, 2 * AROUND), "", "", error)


def _cut(pieces: Sequence[str], at: int, marked: bool) -> Told:
    before, after = texts.visible("".join(pieces[:at])), texts.visible("".join(pieces[at + 1 :]))
    if len(before) > AROUND:
        before = f"… {before[-AROUND:]}"
    if len(after) > AROUND:
        after = f"{after[:AROUND]} …"
    mark = _sign("".join(pieces[at : at + 1])) if marked else ""
    return Told(before, mark, after)


def _sign(token: str) -> str:
    """A token by itself, so that it can be seen: an end and a blank are something as well."""
    shown = texts.shorten(token, 40).replace("\n", "⏎").replace("\t", "⇥")
    return shown if shown.strip() else "␣" * len(shown) or "∎"


def _facts(base: Answer, candidate: Answer, at: int) -> list[str]:
    facts = []
    ends = [answer.tokens[at : at + 1] for answer in (base, candidate)]
    if not (base.tokens and candidate.tokens):
        pass  # one of them was plain text
    elif ends[0] != ends[1]:
        one, other = (_sign("".join(end)) for end in ends)
        facts.append(f"token {at}: {one} became {other}")
    elif ends[0]:
        facts.append(f"token {at}: {_sign(ends[0][0])} in both")
    pair = [one for answer in (base, candidate) for one in answer.logprobs[at : at + 1]]
    if len(pair) == 2:
        mine, others = pair
        change = None if mine is None or others is None else others - mine
        by = f" ({change:+.3g})" if change is not None and math.isfinite(change) else ""
        facts.append(f"logprob {_logprob(mine)} became {_logprob(others)}{by}")
    margin = base.margins[at] if at < len(base.margins) else None
    if margin is not None:
        facts.append(f"the base's margin was {margin:.3g}")
    return facts


def _logprob(value: float | None) -> str:
    return "no number" if value is None or math.isnan(value) else f"{value:.3g}"
