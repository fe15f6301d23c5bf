"""Examples at the ends of their ranges: what a buffer that is full or an index that is last needs.

A draw has bounds, and the bugs of an engine lie on them more often than between them. So the first
example of all takes the upper end of everything, and later ones a mixture.
"""

from __future__ import annotations

from enum import Enum

from hypothesis.internal.conjecture.providers import HypothesisProvider

MAX_LIST_CONTINUATIONS = 64  # times that a corner says "one more" to a list without an end
INTEGER_BOUNDARIES = (
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
)  # where integers without bounds have corners


MIN_SIZE_RANGE = 16  # a range of fewer values is rather one of kinds


class BoundaryBias(Enum):
    HIGH = "the upper end of everything"
    LARGE = "the upper end of what is a size, and any kind"
    MIXED = "an end of some, anything for the others"


BOUNDARY_PROBABILITY = {BoundaryBias.HIGH: 1.0, BoundaryBias.LARGE: 1.0, BoundaryBias.MIXED: 0.5}


class BoundaryProvider(HypothesisProvider):
    """Draws that lean to their bounds."""

    bias = BoundaryBias.MIXED

    def __init__(self, data: object, /) -> None:
        super().__init__(data)  # type: ignore[arg-type]
        self._list_continuations = 0

    def _should_draw_boundary(self) -> bool:
        assert self._random is not None
        return self._random.random() < BOUNDARY_PROBABILITY[self.bias]

    def draw_boolean(self, p: float = 0.5) -> bool:
        if (
            0 < p < 1
            and self._list_continuations < MAX_LIST_CONTINUATIONS
            and self._should_draw_boundary()
        ):
            self._list_continuations += 1
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
        kind = (
            min_value is not None
            and max_value is not None
            and max_value - min_value < MIN_SIZE_RANGE
        )
        if (kind and self.bias is BoundaryBias.LARGE) or not self._should_draw_boundary():
            return super().draw_integer(
                min_value, max_value, weights=weights, shrink_towards=shrink_towards
            )
        if max_value is None:
            fit = [wide for wide in INTEGER_BOUNDARIES if min_value is None or wide >= min_value]
            return self._random.choice(fit) if fit else int(min_value or 0)
        if self.bias is not BoundaryBias.MIXED or min_value is None:
            return max_value
        ends = [max_value, max_value, min_value, max_value - 1, min_value + 1]
        return self._random.choice([end for end in ends if min_value <= end <= max_value])
