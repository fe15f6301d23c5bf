"""The words that every report shares: what a mark looks like, what it means, how a time reads."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.store.prove.values import CellVerdict, SideOutcome


@dataclass(frozen=True)
class ReportMark:
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
        ReportMark("segfault", "SEG", "✖", "death", "A side died by a segmentation fault."),
        ReportMark("abort", "ABR", "✖", "death", "A side aborted its process."),
        ReportMark("killed", "KIL", "✖", "death", "A side was killed by a signal."),
        ReportMark("hang", "HNG", "∞", "death", "A side ran past its time limit."),
        ReportMark("out-of-memory", "OOM", "▣", "death", "A side ran out of memory."),
        ReportMark("cuda-error", "CUD", "✖", "death", "A side ended in an error of CUDA."),
        ReportMark(
            "broken",
            "BRK",
            "✕",
            "broken",
            "The guard fails with the fix in, or cannot be run at all: "
            "its failing without the fix proves nothing.",
        ),
        ReportMark(
            "flaky",
            "FLK",
            "~",
            "broken",
            "The same thing failed and passed: chance decides, so a failure proves nothing.",
        ),
        ReportMark(
            "toothless",
            "TTH",
            "○",
            "toothless",
            "The guard passes with the fix out, although the toggled code ran: "
            "it would not notice the bug.",
        ),
        ReportMark(
            "differs",
            "DIF",
            "≠",
            "broken",
            "Running says one thing about this release, its sources say the other.",
        ),
        ReportMark(
            "unreached",
            "UNR",
            "?",
            "unreached",
            "The toggled code never ran, so the result says nothing.",
        ),
        ReportMark(
            "stale",
            "STA",
            "≈",
            "stale",
            "The code is there and neither form of the toggle matches it: "
            "the toggle needs a new variant.",
        ),
        ReportMark(
            "unguarded",
            "NOG",
            "∅",
            "stale",
            "No guard names this toggle, so nobody would notice if the fix were lost.",
        ),
        ReportMark("missing", "???", "…", "missing", "The run ended before this was done."),
        ReportMark(
            "proven",
            "ok",
            "✓",
            "good",
            "The guard passes with the fix in and fails with the fix out, "
            "and the toggled code ran both times.",
        ),
        ReportMark(
            "has the bug", "BUG", "▲", "bug", "As it is, this release has the bug: the guard fails."
        ),
        ReportMark(
            "has the fix",
            "fix",
            "●",
            "fix",
            "As it is, this release has the fix: the guard passes.",
        ),
        ReportMark(
            "no suite yet",
            "new",
            "◌",
            "quiet",
            "No suite reaches this toggle yet, as its file says: nobody would notice, and that is "
            "known.",
        ),
        ReportMark(
            "n/a", "n/a", "-", "quiet", "The guard cannot apply here, for the reason given."
        ),
        ReportMark("not run", " ", " ", "quiet", "This run did not ask for it."),
        ReportMark("absent", "·", "·", "quiet", "The code of this toggle is not in this release."),
    )
}
SEVERITY = {word: place for place, word in enumerate(MARKS)}
DEATH_WORDS = frozenset(word for word, mark in MARKS.items() if mark.tone == "death")

# What the sources call a state, as a mark of what running found.
STATE_WORDS = {"buggy": "has the bug", "fixed": "has the fix"}


def get_verdict_word(verdict: CellVerdict | None) -> str:
    return verdict.value if verdict else "missing"


def choose_worst(words: Iterable[str]) -> str:
    return min(words, key=lambda word: SEVERITY.get(word, -1))


def describe_counts(
    counts: Mapping[str, int], leading_words: tuple[str, ...] = ("proven",)
) -> list[str]:
    """Counts in words, what is hoped for first, then from the worst down."""
    order = sorted(counts, key=lambda word: (word not in leading_words, SEVERITY.get(word, -1)))
    return [f"{counts[word]} {word.replace('has', 'with')}" for word in order if counts[word]]


SIDE_PHRASES = {
    "fixed": "with the fix in",
    "buggy": "with the fix out",
    "as is": "as the release is",
}
SIDE_ORDER = ("fixed", "buggy", "as is")


def describe_side(side: str, outcome: SideOutcome, reach: int) -> str:
    """One side in a phrase: 'passed with the fix out, its code ran 16 times'."""
    times = "once" if reach == 1 else f"{reach} times"
    ran = f"its code ran {times}" if reach else "its code never ran"
    return f"{outcome.value} {SIDE_PHRASES.get(side, side)}, {ran}"


def format_duration(seconds: float) -> str:
    if seconds < 0.0995:
        return "0 s" if seconds <= 0 else f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{int(seconds) // 60} min {int(seconds) % 60} s"
    return f"{int(seconds) // 3600} h {int(seconds) % 3600 // 60} min"


def format_time(started: str) -> str:
    """'2026-11-21 19:00:00 UTC'; what is no date stays as it is."""
    try:
        moment = datetime.datetime.fromisoformat(started)
    except ValueError:
        return started
    name = "UTC" if not moment.utcoffset() else moment.strftime("%z")
    return f"{moment:%Y-%m-%d %H:%M:%S} {name}"


TERMINAL_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?")
INVISIBLE_CHARACTERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def make_visible(text: str) -> str:
    """The text with terminal colours gone, and with a sign for what would print as nothing."""
    text = TERMINAL_COLOURS.sub("", text).replace("\r\n", "\n")
    return INVISIBLE_CHARACTERS.sub(lambda match: escape_character(match[0]), text)


def escape_character(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def get_test_name(guard: str) -> str:
    """A test's name without its file."""
    return guard.partition("::")[2] or guard


def get_guard_file(guard: str) -> str:
    return guard.partition("::")[0]


MAX_NAME_LENGTH = 60
MIN_OMITTED_LETTERS = 40  # so few letters are not left out: saying so takes as many


def to_single_line(text: str, max_length: int = MAX_NAME_LENGTH) -> str:
    """A name or a reason, in one line."""
    whole = " ".join(text.split())
    return shorten_text(
        whole,
        max_length
        if len(whole) > max_length + MIN_OMITTED_LETTERS
        else max_length + MIN_OMITTED_LETTERS,
    )


def shorten_text(text: str, max_length: int) -> str:
    """A text as it can be shown, with its middle left out where it is long."""
    shown = make_visible(text)
    if len(shown) <= max_length:
        return shown
    left = len(shown) - max_length
    return f"{shown[: max_length // 2]} … {left} letters … {shown[len(shown) - max_length // 2 :]}"


MAX_OUTPUT_LENGTH = 60_000  # letters of one traceback or output; a page must open fast


def truncate_start(text: str) -> str:
    """The end of a text that is too long: there a traceback says what happened."""
    shown = make_visible(text)
    if len(shown) <= MAX_OUTPUT_LENGTH:
        return shown
    return f"… {len(shown) - MAX_OUTPUT_LENGTH} more characters before this\n{shown[-MAX_OUTPUT_LENGTH:]}"
