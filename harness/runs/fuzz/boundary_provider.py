"""Examples at the ends of their ranges, where buffers are full and indices are last.

A draw has bounds, and the bugs of an engine lie at them more often than between them. The first
example takes the upper end of everything, and later ones mix ends with other values. Example: a
batch of up to 64 requests, each of up to 2,048 tokens, is first drawn as 64 requests of 2,048.
"""

from __future__ import annotations

from enum import Enum

from harness.guards.hypothesis_adapter import HypothesisProvider

MAX_LIST_CONTINUATIONS = 64  # times that an example goes on with a list without an end
INTEGER_BOUNDARIES = (2**31 - 1, 2**31, 2**32 - 1, 2**32)  # for integers without an upper bound
MIN_SIZE_RANGE = 16  # a range of fewer values counts as a choice of kinds, not as a size


class BoundaryBias(Enum):
    HIGH = "the upper end of everything"
    LARGE = "the upper end of sizes, and any kind"
    MIXED = "an end of some, any value of the others"


BOUNDARY_PROBABILITY = {BoundaryBias.HIGH: 1.0, BoundaryBias.LARGE: 1.0, BoundaryBias.MIXED: 0.5}


class BoundaryProvider(HypothesisProvider):
    """Hypothesis's draws with a bias towards their bounds."""

    bias = BoundaryBias.MIXED

    def __init__(self, data: object, /) -> None:
        super().__init__(data)  # type: ignore[arg-type]
        self._list_continuations = 0

    def _should_draw_boundary(self) -> bool:
        assert self._random is not None
        return self._random.random() < BOUNDARY_PROBABILITY[self.bias]

    def draw_boolean(self, p: float = 0.5) -> bool:
        is_open = 0 < p < 1 and self._list_continuations < MAX_LIST_CONTINUATIONS
        if is_open and self._should_draw_boundary():
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
        is_bounded = min_value is not None and max_value is not None
        is_kind = is_bounded and max_value - min_value < MIN_SIZE_RANGE  # type: ignore[operator]
        if (is_kind and self.bias is BoundaryBias.LARGE) or not self._should_draw_boundary():
            return super().draw_integer(
                min_value, max_value, weights=weights, shrink_towards=shrink_towards
            )
        if max_value is None:
            fitting = [end for end in INTEGER_BOUNDARIES if min_value is None or end >= min_value]
            return self._random.choice(fitting) if fitting else int(min_value or 0)
        if self.bias is not BoundaryBias.MIXED or min_value is None:
            return max_value
        ends = [max_value, max_value, min_value, max_value - 1, min_value + 1]
        return self._random.choice([end for end in ends if min_value <= end <= max_value])
