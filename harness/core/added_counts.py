"""Counts by name, added."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


def add_counts(*counts: Mapping[str, int]) -> dict[str, int]:
    """Add counts by name, as a plain dictionary, which a result holds."""
    total = Counter[str]()
    for mapping in counts:
        total.update(mapping)
    return dict(total)
