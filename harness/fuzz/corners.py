"""Examples at the ends of their ranges: what a buffer that is full or an index that is last needs.

A draw has bounds, and the bugs of an engine lie on them more often than between them. So the first
example of all takes the upper end of everything, and later ones a mixture.
"""

from __future__ import annotations

from enum import Enum

from hypothesis.internal.conjecture.providers import HypothesisProvider

LONGEST = 64  # times that a corner says "one more" to a list without an end
WIDE = (2**31 - 1, 2**31, 2**32 - 1, 2**32)  # where integers without bounds have corners


SIZE = 16  # a range of fewer values is rather one of kinds


class Mood(Enum):
    HIGH = "the upper end of everything"
    LARGE = "the upper end of what is a size, and any kind"
    MIXED = "an end of some, anything for the others"


SHARE = {Mood.HIGH: 1.0, Mood.LARGE: 1.0, Mood.MIXED: 0.5}


class Corners(HypothesisProvider):
    """Draws that lean to their bounds."""

    mood = Mood.MIXED

    def __init__(self, data: object, /) -> None:
        super().__init__(data)  # type: ignore[arg-type]
        self._more = 0

    def _leans(self) -> bool:
        assert self._random is not None
        return self._random.random() < SHARE[self.mood]

    def draw_boolean(self, p: float = 0.5) -> bool:
        if 0 < p < 1 and self._more < LONGEST and self._leans():
            self._more += 1
            return True
        return super().draw_boolean(p)

    def draw_integer(
        self,
        min_value: int | None = None,
        max_value: int | None = None,
        *,
        weights: dict[int, float] | None = None,
        shrink_towards: int = 0,
    ) -> int:
        assert self._random is not None
        kind = min_value is not None and max_value is not None and max_value - min_value < SIZE
        if (kind and self.mood is Mood.LARGE) or not self._leans():
            return super().draw_integer(
                min_value, max_value, weights=weights, shrink_towards=shrink_towards
            )
        if max_value is None:
            fit = [wide for wide in WIDE if min_value is None or wide >= min_value]
            return self._random.choice(fit) if fit else int(min_value or 0)
        if self.mood is not Mood.MIXED or min_value is None:
            return max_value
        ends = [max_value, max_value, min_value, max_value - 1, min_value + 1]
        return self._random.choice([end for end in ends if min_value <= end <= max_value])
