"""`torch.cuda.default_generators`: a generator for each card, with the state that CUDA's has.

Random numbers come from the CPU's generator, whose state is another. Libraries that draw in their
own kernels read a seed and an offset from CUDA's, and move the offset on. Example: a dropout
reads (seed, 0), uses the next 4,000 numbers and sets the state to (seed, 4000).
"""

from __future__ import annotations

from typing import Any

import torch

_base: Any = torch.Generator  # torch's own: the virtual device replaces the name


class DefaultGenerator(_base):  # type: ignore[misc]
    def __init__(self) -> None:
        self._offset = 0
        super().manual_seed(torch.default_generator.initial_seed())

    def manual_seed(self, seed: int) -> DefaultGenerator:
        """Seed the CPU's generator as well, which draws what torch itself draws."""
        self._offset = 0
        torch.default_generator.manual_seed(seed)
        super().manual_seed(seed)
        return self

    def get_offset(self) -> int:
        return self._offset

    def set_offset(self, offset: int) -> None:
        self._offset = offset

    def get_state(self) -> torch.Tensor:
        return torch.tensor([self.initial_seed(), self._offset]).view(torch.uint8)

    def set_state(self, state: torch.Tensor) -> None:
        seed, offset = state.view(torch.int64).tolist()
        if seed != self.initial_seed():
            self.manual_seed(seed)
        self._offset = offset


def make_generators(count: int) -> tuple[DefaultGenerator, ...]:
    return tuple(DefaultGenerator() for _ in range(count))
