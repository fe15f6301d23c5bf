"""The launches of a session: which happened, which programs run, which fences hold in them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from harness.kernels.check.tracked_memory import AccessRule, Index, MemoryTracker, ProgramId

_MAX_LAUNCHES = 2000

ArgumentRule = Callable[["KernelLaunch", int, int, int], Index]


@dataclass(slots=True)
class KernelLaunch:
    kernel: str
    grid: ProgramId
    arguments: dict[str, Any] = field(repr=False)

    @property
    def program_count(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    def __str__(self) -> str:
        return f"{self.kernel}{list(self.grid)}"


@dataclass(frozen=True, slots=True)
class ArgumentAccessRule:
    kernel: str
    argument: str
    write: ArgumentRule | None
    read: ArgumentRule | None


class LaunchLog(list[KernelLaunch]):
    def __init__(self) -> None:
        super().__init__()
        self.errors: list[Exception] = []  # what was raised, whether or not anyone caught it
        self._chosen_programs: dict[str, tuple[ProgramId, ...]] = {}
        self._argument_rules: list[ArgumentAccessRule] = []
        self._active_rules: list[tuple[list[AccessRule], AccessRule]] = []

    def run_only(self, kernel: str, programs: Iterable[Iterable[int]]) -> None:
        whole = [(*program, 0, 0)[:3] for program in programs]
        self._chosen_programs[kernel] = tuple((int(x), int(y), int(z)) for x, y, z in whole)

    def add_argument_rule(self, rule: ArgumentAccessRule) -> None:
        self._argument_rules.append(rule)

    def get_chosen_programs(self, launch: KernelLaunch) -> tuple[ProgramId, ...] | None:
        """The programs that a suite named, or None for the whole grid."""
        chosen = self._chosen_programs.get(launch.kernel)
        for program in chosen or ():
            if any(place >= side for place, side in zip(program, launch.grid, strict=True)):
                raise ValueError(f"{launch} has no program {program}")
        return chosen

    def list_programs(self, launch: KernelLaunch) -> Iterable[ProgramId]:
        chosen = self.get_chosen_programs(launch)
        if chosen is not None:
            return chosen
        return itertools.product(*(range(side) for side in launch.grid))  # type: ignore[return-value]

    def begin_launch(self, launch: KernelLaunch, memory: MemoryTracker) -> None:
        if len(self) >= _MAX_LAUNCHES:  # a server's session lasts, and each holds its tensors
            del self[: _MAX_LAUNCHES // 2]
        self.append(launch)
        for name, value in launch.arguments.items():
            if isinstance(value, torch.Tensor) and value.device.type == "cpu":
                memory.track_storage(value, name)
        for fence in self.make_access_rules(launch):
            fences = memory.track_storage(fence.tensor).access_rules
            fences.append(fence)
            self._active_rules.append((fences, fence))

    def release_tensors(self) -> None:
        """What was launched stays named; its tensors, and errors with their places, are let go."""
        for launch in self:
            launch.arguments.clear()
        self._argument_rules.clear()
        self.errors.clear()

    def end_launch(self, launch: KernelLaunch) -> None:
        while self._active_rules:
            fences, fence = self._active_rules.pop()
            fences.remove(fence)

    def make_access_rules(self, launch: KernelLaunch) -> list[AccessRule]:
        made = []
        for rule in self._argument_rules:
            if rule.kernel == launch.kernel:
                if rule.argument not in launch.arguments:
                    names = ", ".join(launch.arguments)
                    raise ValueError(f"{launch.kernel} has no argument {rule.argument}: {names}")
                tensor = launch.arguments[rule.argument]
                write, read = bind_rule(rule.write, launch), bind_rule(rule.read, launch)
                made.append(AccessRule(tensor, write, read))
        return made


def to_full_grid(sides: Iterable[Any]) -> ProgramId:
    whole = tuple(int(side) for side in sides)
    if len(whole) > 3:
        raise ValueError(f"a grid of {len(whole)} dimensions: {whole}")
    x, y, z = (*whole, 1, 1)[:3]
    return x, y, z


def bind_rule(
    rule: ArgumentRule | None, launch: KernelLaunch
) -> Callable[[ProgramId], Index] | None:
    if rule is None:
        return None
    return lambda program: rule(launch, *program)
