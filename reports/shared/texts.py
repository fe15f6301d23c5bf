"""The words that every report shares: what a mark looks like, what it means, how a time reads."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.store.prove.values import Outcome, Verdict


@dataclass(frozen=True)
class Mark:
    """How one answer is shown: in a word, in three letters, in one sign, and in a tone."""

    word: str
    short: str
    glyph: str
    tone: str
    meaning: str

    @property
    def good(self) -> bool:
        return self.tone in ("good", "quiet", "bug", "fix")


# From the worst to the mildest: of several guards in one box the first of these is shown.
MARKS = {
    mark.word: mark
    for mark in (
        Mark("segfault", "SEG", "✖", "death", "A side died by a segmentation fault."),
        Mark("abort", "ABR", "✖", "death", "A side aborted its process."),
        Mark("killed", "KIL", "✖", "death", "A side was killed by a signal."),
        Mark("hang", "HNG", "∞", "death", "A side ran past its time limit."),
        Mark("out-of-memory", "OOM", "▣", "death", "A side ran out of memory."),
        Mark("cuda-error", "CUD", "✖", "death", "A side ended in an error of CUDA."),
        Mark(
            "broken",
            "BRK",
            "✕",
            "broken",
            "The guard fails with the fix in, or cannot be run at all: "
            "its failing without the fix proves nothing.",
        ),
        Mark(
            "flaky",
            "FLK",
            "~",
            "broken",
            "The same thing failed and passed: chance decides, so a failure proves nothing.",
        ),
        Mark(
            "toothless",
            "TTH",
            "○",
            "toothless",
            "The guard passes with the fix out, although the toggled code ran: "
            "it would not notice the bug.",
        ),
        Mark(
            "differs",
            "DIF",
            "≠",
            "broken",
            "Running says one thing about this release, its sources say the other.",
        ),
        Mark(
            "unreached",
            "UNR",
            "?",
            "unreached",
            "The toggled code never ran, so the result says nothing.",
        ),
        Mark(
            "stale",
            "STA",
            "≈",
            "stale",
            "The code is there and neither form of the toggle matches it: "
            "the toggle needs a new variant.",
        ),
        Mark(
            "unguarded",
            "NOG",
            "∅",
            "stale",
            "No guard names this toggle, so nobody would notice if the fix were lost.",
        ),
        Mark("missing", "???", "…", "missing", "The run ended before this was done."),
        Mark(
            "proven",
            "ok",
            "✓",
            "good",
            "The guard passes with the fix in and fails with the fix out, "
            "and the toggled code ran both times.",
        ),
        Mark(
            "has the bug", "BUG", "▲", "bug", "As it is, this release has the bug: the guard fails."
        ),
        Mark(
            "has the fix",
            "fix",
            "●",
            "fix",
            "As it is, this release has the fix: the guard passes.",
        ),
        Mark(
            "no suite yet",
            "new",
            "◌",
            "quiet",
            "No suite reaches this toggle yet, as its file says: nobody would notice, and that is "
            "known.",
        ),
        Mark("n/a", "n/a", "-", "quiet", "The guard cannot apply here, for the reason given."),
        Mark("not run", " ", " ", "quiet", "This run did not ask for it."),
        Mark("absent", "·", "·", "quiet", "The code of this toggle is not in this release."),
    )
}
SEVERITY = {word: place for place, word in enumerate(MARKS)}
DEATHS = frozenset(word for word, mark in MARKS.items() if mark.tone == "death")

# What the sources call a state, as a mark of what running found.
FOUND = {"buggy": "has the bug", "fixed": "has the fix"}


def word_of(verdict: Verdict | None) -> str:
    return verdict.value if verdict else "missing"


def worst(words: Iterable[str]) -> str:
    return min(words, key=lambda word: SEVERITY.get(word, -1))


def counted(counts: Mapping[str, int], first: tuple[str, ...] = ("proven",)) -> list[str]:
    """Counts in words, what is hoped for first, then from the worst down."""
    order = sorted(counts, key=lambda word: (word not in first, SEVERITY.get(word, -1)))
    return [f"{counts[word]} {word.replace('has', 'with')}" for word in order if counts[word]]


SIDES = {"fixed": "with the fix in", "buggy": "with the fix out", "as is": "as the release is"}
SIDE_ORDER = ("fixed", "buggy", "as is")


def happened(side: str, outcome: Outcome, reach: int) -> str:
    """One side in a phrase: 'passed with the fix out, its code ran 16 times'."""
    times = "once" if reach == 1 else f"{reach} times"
    ran = f"its code ran {times}" if reach else "its code never ran"
    return f"{outcome.value} {SIDES.get(side, side)}, {ran}"


def duration(seconds: float) -> str:
    if seconds < 0.0995:
        return "0 s" if seconds <= 0 else f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{int(seconds) // 60} min {int(seconds) % 60} s"
    return f"{int(seconds) // 3600} h {int(seconds) % 3600 // 60} min"


def when(started: str) -> str:
    """'2026-11-21 19:00:00 UTC'; what is no date stays as it is."""
    try:
        moment = datetime.datetime.fromisoformat(started)
    except ValueError:
        return started
    name = "UTC" if not moment.utcoffset() else moment.strftime("%z")
    return f"{moment:%Y-%m-%d %H:%M:%S} {name}"


COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?")
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def visible(text: str) -> str:
    """The text with terminal colours gone, and with a sign for what would print as nothing."""
    text = COLOURS.sub("", text).replace("\r\n", "\n")
    return HIDDEN.sub(lambda match: sign(match[0]), text)


def sign(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def short_guard(guard: str) -> str:
    """A test's name without its file."""
    return guard.partition("::")[2] or guard


def guard_file(guard: str) -> str:
    return guard.partition("::")[0]


NAME = 60
SPARED = 40  # so few letters are not left out: saying so takes as many


def line(text: str, most: int = NAME) -> str:
    """A name or a reason, in one line."""
    whole = " ".join(text.split())
    return shorten(whole, most if len(whole) > most + SPARED else most + SPARED)


def shorten(text: str, most: int) -> str:
    """A text as it can be shown, with its middle left out where it is long."""
    shown = visible(text)
    if len(shown) <= most:
        return shown
    left = len(shown) - most
    return f"{shown[: most // 2]} … {left} letters … {shown[len(shown) - most // 2 :]}"


LONGEST = 60_000  # letters of one traceback or output; a page must open fast


def cut(text: str) -> str:
    """The end of a text that is too long: there a traceback says what happened."""
    shown = visible(text)
    if len(shown) <= LONGEST:
        return shown
    return f"… {len(shown) - LONGEST} more characters before this\n{shown[-LONGEST:]}"
