"""A recorded launch of any package's kernel as sizes that grow: nothing of it is guessed.

Only the first side of a tensor grows, for no stride of the tensor depends on it. Numbers of the
launch that are that side, or the product of it and the next ones, grow with it, a side of the grid
also by blocks; every other number, stride and constant stays. Example: `x` of 8 x 4096 was launched
with `rows = 8, stride = 4096` and 8 programs: the rows may grow until `x` fills a card's memory,
and from 524,289 rows on `row * stride` overflows. A number that could be one or the other (of a
square, the rows or the stride) stays.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import accumulate
from math import prod
from operator import mul

from harness.runs.audit.expressions import Expression
from harness.runs.audit.host_scope import HostLaunch
from harness.runs.audit.parameter_inference import SOURCE_RECORDED_LAUNCH, AssumedParameter
from harness.runs.audit.size_limits import ModelShape, SizeLimits, SizeQuantity
from harness.sanitizer.device.cards import load_cards
from harness.sanitizer.triton.recorded_launches import (
    CONSTEXPR,
    LaunchMode,
    TensorSize,
    constant_from_json,
)


class RecordedSizes:
    """The numbers of one recorded launch, as expressions over the sides that grow."""

    def __init__(self, mode: LaunchMode) -> None:
        self._mode = mode
        self._tensors = {
            name: size for name, size in mode.sizes.items() if isinstance(size, TensorSize)
        }
        self._constants = [one for one in mode.constants.values() if type(one) is int and one > 1]
        fixed = {
            number for one in self._tensors.values() for number in (*one.shape[1:], *one.strides)
        }
        self._words: dict[int, str] = {}  # by side: what grows
        for name, one in self._tensors.items():
            if one.shape and one.shape[0] > 1 and one.shape[0] not in {*fixed, *self._constants}:
                self._words.setdefault(one.shape[0], f"rows of {name}")
        self._expressions: dict[int, Expression] = {}
        ambiguous = set(fixed)
        for one in self._tensors.values():
            if word := self._words.get(one.shape[0] if one.shape else 0):
                for product in accumulate(one.shape, mul):
                    rest = product // one.shape[0]
                    grown: Expression = word if rest == 1 else ("*", word, rest)
                    if self._expressions.setdefault(product, grown) != grown:
                        ambiguous.add(product)
        for number in ambiguous & self._expressions.keys():
            del self._expressions[number]

    def express(self, number: int) -> Expression:
        return self._expressions.get(number, number)

    def express_grid(self) -> tuple[Expression, ...]:
        """Express each side of the grid: a number that grows, or one in blocks of a constant."""
        sides: list[Expression] = []
        for side in self._mode.grid:
            blocks = {
                ("cdiv", grown, size)
                for number, grown in self._expressions.items()
                for size in self._constants
                if -(-number // size) == side > 1
            }
            known = self.express(side)
            sides.append(known if known != side or len(blocks) != 1 else blocks.pop())
        return tuple(sides)

    def make_parameters(self) -> list[AssumedParameter]:
        parameters = []
        for name, kind in self._mode.types.items():
            one = AssumedParameter(name, kind, source=SOURCE_RECORDED_LAUNCH)
            size = self._mode.sizes.get(name)
            if kind == CONSTEXPR:
                one = replace(one, value=constant_from_json(self._mode.constants[name]))
            elif one.is_pointer:
                one = replace(one, expression=name)
            elif type(size) is int:
                one = replace(one, expression=self.express(size))
            parameters.append(one)
        return parameters

    def make_limits(self, limits: SizeLimits) -> SizeLimits:
        """Limit each side by the memory of the largest card."""
        memory = max(card.memory for card in load_cards().values())
        quantities = {}
        for side, word in self._words.items():
            row_bytes = sum(
                prod(one.shape[1:]) * one.itemsize
                for one in self._tensors.values()
                if one.shape and one.shape[0] == side
            )
            quantities[word] = SizeQuantity(
                word, side, max(side, memory // max(1, row_bytes)), "a launch of its suite", True,
                "a card's memory",
            )  # fmt: skip
        patterns = tuple((re.compile(f"^{re.escape(word)}$"), word) for word in quantities)
        suite = ModelShape("its suite", "a recorded launch", {})  # all but what grows is of it
        return SizeLimits(quantities, (suite,), patterns, (), f"{limits.text}{self._mode}")

    def make_launch(self, file: str, line: int) -> HostLaunch:
        return HostLaunch(file, line, self._mode.kernel, grid=self.express_grid())
