"""Numbers in words: a count with its noun, a duration that reads at a glance."""

from __future__ import annotations

from collections.abc import Iterable


def format_count(count: int, noun: str) -> str:
    """'1 cell', '2 cells', '3 processes'."""
    plural = f"{noun}es" if noun.endswith(("s", "ch", "x")) else f"{noun}s"
    return f"{count} {noun if count == 1 else plural}"


def format_duration(seconds: float) -> str:
    """'0 s', '4 ms', '0.42 s', '7.3 s', '73 s', '2 min 10 s', '2 h 3 min'."""
    if seconds < 0.0995:
        return "0 s" if seconds <= 0 else f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{int(seconds) // 60} min {int(seconds) % 60} s"
    return f"{int(seconds) // 3600} h {int(seconds) % 3600 // 60} min"


def find_nearest_word(word: str, candidates: Iterable[str], cutoff: float = 0.6) -> str:
    import difflib

    return "".join(difflib.get_close_matches(word, candidates, n=1, cutoff=cutoff))
