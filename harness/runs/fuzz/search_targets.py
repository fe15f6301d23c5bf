"""The targets of a fuzzing run: full buffers, largest indices and boundary pages.

Fixtures and suites report how near an example came to a target. Outside of `unfix fuzz` a report
has no effect: a guard draws the same examples from a seed with and without it.
"""

from __future__ import annotations

_target_values: dict[str, float] | None = None


def maximize_target(label: str, value: float) -> None:
    """Report a value that grows towards an edge. The largest value of a label counts."""
    if _target_values is not None:
        _target_values[label] = max(value, _target_values.get(label, value))


def approach_boundary(label: str, index: int, edge: int) -> None:
    """Report how near an index is to an edge, from either side; 1 is on the edge."""
    maximize_target(label, 1.0 / (1.0 + abs(index - edge)))


def begin_example() -> None:
    global _target_values
    _target_values = {}


def end_example() -> dict[str, float]:
    """Return the values of the example; reports have no effect until the next one begins."""
    global _target_values
    reached, _target_values = _target_values or {}, None
    return reached
