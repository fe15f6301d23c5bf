"""The launches of a session: which happened, which programs run, which fences hold in them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from harness.checking.memory import Fence, Index, Memory, Program

_REMEMBERED = 2000

ArgumentRule = Callable[["Launch", int, int, int], Index]


@dataclass(slots=True)
class Launch:
    kernel: str
    grid: Program
    arguments: dict[str, Any] = field(repr=False)

    @property
    def size(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    def __str__(self) -> str:
        return f"{self.kernel}{list(self.grid)}"


@dataclass(frozen=True, slots=True)
class ArgumentFence:
    kernel: str
    argument: str
    write: ArgumentRule | None
    read: ArgumentRule | None


class Launches(list[Launch]):
    def __init__(self) -> None:
        super().__init__()
        self.refused: list[Exception] = []  # what was raised, whether or not anyone caught it
        self._only: dict[str, tuple[Program, ...]] = {}
        self._fences: list[ArgumentFence] = []
        self._held: list[tuple[list[Fence], Fence]] = []

    def only(self, kernel: str, programs: Iterable[Iterable[int]]) -> None:
        whole = [(*program, 0, 0)[:3] for program in programs]
        self._only[kernel] = tuple((int(x), int(y), int(z)) for x, y, z in whole)

    def fence(self, fence: ArgumentFence) -> None:
        self._fences.append(fence)

    def chosen(self, launch: Launch) -> tuple[Program, ...] | None:
        """The programs that a suite named, or None for the whole grid."""
        chosen = self._only.get(launch.kernel)
        for program in chosen or ():
            if any(place >= side for place, side in zip(program, launch.grid, strict=True)):
                raise ValueError(f"{launch} has no program {program}")
        return chosen

    def programs(self, launch: Launch) -> Iterable[Program]:
        chosen = self.chosen(launch)
        if chosen is not None:
            return chosen
        return itertools.product(*(range(side) for side in launch.grid))  # type: ignore[return-value]

    def starts(self, launch: Launch, memory: Memory) -> None:
        if len(self) >= _REMEMBERED:  # a server's session lasts, and each holds its tensors
            del self[: _REMEMBERED // 2]
        self.append(launch)
        for name, value in launch.arguments.items():
            if isinstance(value, torch.Tensor) and value.device.type == "cpu":
                memory.storage_of(value, name)
        for fence in self.fences_of(launch):
            fences = memory.storage_of(fence.tensor).fences
            fences.append(fence)
            self._held.append((fences, fence))

    def forget(self) -> None:
        """What was launched stays named; its tensors, and errors with their places, are let go."""
        for launch in self:
            launch.arguments.clear()
        self._fences.clear()
        self.refused.clear()

    def ends(self, launch: Launch) -> None:
        while self._held:
            fences, fence = self._held.pop()
            fences.remove(fence)

    def fences_of(self, launch: Launch) -> list[Fence]:
        made = []
        for rule in self._fences:
            if rule.kernel == launch.kernel:
                if rule.argument not in launch.arguments:
                    names = ", ".join(launch.arguments)
                    raise ValueError(f"{launch.kernel} has no argument {rule.argument}: {names}")
                tensor = launch.arguments[rule.argument]
                write, read = bound(rule.write, launch), bound(rule.read, launch)
                made.append(Fence(tensor, write, read))
        return made


def whole_grid(sides: Iterable[Any]) -> Program:
    whole = tuple(int(side) for side in sides)
    if len(whole) > 3:
        raise ValueError(f"a grid of {len(whole)} dimensions: {whole}")
    x, y, z = (*whole, 1, 1)[:3]
    return x, y, z


def bound(rule: ArgumentRule | None, launch: Launch) -> Callable[[Program], Index] | None:
    if rule is None:
        return None
    return lambda program: rule(launch, *program)
