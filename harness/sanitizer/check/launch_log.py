"""The launches of a session: each kernel, its programs that ran, and the access rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from harness.sanitizer.check.tracked_memory import (
    AccessRule,
    Index,
    MemoryTracker,
    ProgramId,
    is_in_host_memory,
)
from harness.sanitizer.triton.line_tracing import find_caller
from harness.sanitizer.violations.exceptions import Violation

_MAX_LAUNCHES = 2000

ArgumentRule = Callable[["KernelLaunch", int, int, int], Index]


@dataclass(slots=True)
class KernelLaunch:
    kernel: str
    grid: ProgramId
    arguments: dict[str, Any] = field(repr=False)
    module: str = ""
    place: str = ""  # file:line of the kernel
    in_debug_mode: bool = True  # as without it, a card skips the kernel's assertions
    options: dict[str, Any] = field(default_factory=dict, repr=False)  # Triton's: num_warps, …
    refusal: str = ""  # why it was not run
    seconds: float = 0.0  # that its programs ran
    approximations: tuple[str, ...] = ()  # a GPU may compute these otherwise, within bounds

    @property
    def refusal_reason(self) -> str:
        """Why it was not run, in one line without the kernel's name."""
        return self.refusal.partition("\n")[0].removeprefix(f"{self.kernel}: ")

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
        self.errors: list[Exception] = []  # violations and refusals so far, raised or not
        self.observers: list[Callable[[KernelLaunch], None]] = []  # called when a launch ends
        self.violation_observers: list[Callable[[Violation], None]] = []
        self.configuration_counts: dict[str, int] = {}  # of autotuned kernels, by name
        self.ignores_races = False
        self.keeps_tensors = True  # or drops them after the launch, so that memory can be freed
        self._chosen_programs: dict[str, tuple[ProgramId, ...]] = {}
        self._argument_rules: list[ArgumentAccessRule] = []
        self._active_rules: list[tuple[list[AccessRule], AccessRule]] = []

    def run_only(self, kernel: str, programs: Iterable[Iterable[int]]) -> None:
        padded = [(*program, 0, 0)[:3] for program in programs]
        self._chosen_programs[kernel] = tuple((int(x), int(y), int(z)) for x, y, z in padded)

    def add_argument_rule(self, rule: ArgumentAccessRule) -> None:
        self._argument_rules.append(rule)

    def get_chosen_programs(self, launch: KernelLaunch) -> tuple[ProgramId, ...] | None:
        """Return the programs that a suite named, or None for the whole grid."""
        chosen = self._chosen_programs.get(launch.kernel)
        for program in chosen or ():
            if any(place >= side for place, side in zip(program, launch.grid, strict=True)):
                raise ValueError(f"{launch} has no program {program}")
        return chosen

    def begin_launch(self, launch: KernelLaunch, memory: MemoryTracker) -> None:
        # A server's session is long, and each launch keeps its tensors alive.
        if len(self) >= _MAX_LAUNCHES:
            del self[: _MAX_LAUNCHES // 2]
        self.append(launch)
        for name, value in launch.arguments.items():
            if isinstance(value, torch.Tensor) and is_in_host_memory(value):
                memory.track_storage(value, name)
        for rule in self.make_access_rules(launch):
            rules = memory.track_storage(rule.tensor).access_rules
            rules.append(rule)
            self._active_rules.append((rules, rule))

    def release_tensors(self) -> None:
        """Drop the references to tensors; names and grids of the launches stay."""
        for launch in self:
            launch.arguments.clear()
        self._argument_rules.clear()
        self.errors.clear()

    def add_violations(self, violations: list[Violation], max_reports: int) -> Violation | None:
        """Add a launch's violations, one a source line; return the one that is the last allowed."""
        for violation in violations:
            known = (each for each in self.errors if isinstance(each, Violation))
            if all(each.key != violation.key for each in known):
                if max_reports > 1:  # it is raised somewhere else
                    violation.add_note(f"launched at {find_caller()}")
                self.errors.append(violation)
                for observe in self.violation_observers:
                    observe(violation)
                if len(self.errors) >= max_reports:
                    return violation
        return None

    def drop_launch(self, launch: KernelLaunch) -> None:
        """Take back the last launch, which began and did not run."""
        assert self[-1] is launch
        self.pop()

    def end_launch(self, launch: KernelLaunch) -> None:
        while self._active_rules:
            rules, rule = self._active_rules.pop()
            rules.remove(rule)
        if any(launch is known for known in self[-1:]):
            for observe in self.observers:
                observe(launch)
        if not self.keeps_tensors:
            for name, value in list(launch.arguments.items()):
                if isinstance(value, torch.Tensor):
                    del launch.arguments[name]

    def make_access_rules(self, launch: KernelLaunch) -> list[AccessRule]:
        rules = []
        for rule in self._argument_rules:
            if rule.kernel != launch.kernel:
                continue
            if rule.argument not in launch.arguments:
                names = ", ".join(launch.arguments)
                raise ValueError(f"{launch.kernel} has no argument {rule.argument}: {names}")
            write, read = _bind_rule(rule.write, launch), _bind_rule(rule.read, launch)
            rules.append(AccessRule(launch.arguments[rule.argument], write, read))
        return rules


def to_full_grid(sides: Iterable[Any]) -> ProgramId:
    grid = tuple(int(side) for side in sides)
    if len(grid) > 3:
        raise ValueError(f"a grid of {len(grid)} dimensions: {grid}")
    x, y, z = (*grid, 1, 1)[:3]
    return x, y, z


def to_coordinates(number: int, grid: ProgramId) -> ProgramId:
    """Return the coordinates of a program by its number in a full grid."""
    rest, z = divmod(number, grid[2])
    x, y = divmod(rest, grid[1])
    return x, y, z


def _bind_rule(
    rule: ArgumentRule | None, launch: KernelLaunch
) -> Callable[[ProgramId], Index] | None:
    if rule is None:
        return None
    return lambda program: rule(launch, *program)
