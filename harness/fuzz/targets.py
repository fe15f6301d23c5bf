"""Where a fuzzing run searches: towards full buffers, largest indices and boundary pages.

Fixtures and suites say how far an example went. Outside of `unfix fuzz` that is nothing, so that a
guard draws the same examples from a seed whoever says it.
"""

from __future__ import annotations

_reached: dict[str, float] | None = None


def toward(label: str, value: float) -> None:
    """The larger the value, the nearer to an edge; of a label said twice the larger counts."""
    if _reached is not None:
        _reached[label] = max(value, _reached.get(label, value))


def boundary(label: str, index: int, edge: int) -> None:
    """How near an index is to an edge, from either side: 1 is on it."""
    toward(label, 1.0 / (1.0 + abs(index - edge)))


def begin() -> None:
    global _reached
    _reached = {}


def end() -> dict[str, float]:
    """What an example said; until the next one begins nobody listens."""
    global _reached
    reached, _reached = _reached or {}, None
    return reached
