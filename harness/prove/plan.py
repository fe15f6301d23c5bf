"""What a run is asked for, and what of it is left to do on one release."""

from __future__ import annotations

import hashlib
import math
import os
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from harness import paths
from harness.prove import verdicts
from harness.prove.messages import Collected, Task
from harness.prove.messages import Key as TaskKey
from harness.registry.schema import Toggle
from harness.releases.sources import SourceTree
from harness.store.prove.values import Again, Cell, OnRelease, Side, Verdict, Way

Key = tuple[str, str, str, str]  # release, device, toggle, guard
# In this order: what the buggy side finds, the other one runs first of all.
SIDES = {"prove": ["buggy", "fixed"], "lifecycle": ["as is"]}
Earlier = Callable[[Cell], Iterable[tuple[str, Again]]]


@dataclass(frozen=True)
class Target:
    """A release that a run goes over."""

    name: str
    python: Path
    tree: SourceTree
    asked: str = ""  # the word it was asked for by
    device: str = "cpu"


@dataclass(frozen=True)
class Asked:
    """What the caller wants, as `prove` and `lifecycle` share it."""

    kind: str
    targets: list[Target]
    toggles: list[Toggle]  # of the whole registry, or those that were named
    named: bool  # whether some were named
    device: str = "cpu"
    jobs: int = 1
    seconds: float = 300.0  # for one side of one cell
    memory: int = 8 << 30
    profile: str = "default"
    words: list[str] = field(default_factory=list)  # further arguments of pytest
    folders: list[Path] = field(default_factory=list)  # further toggles
    shard: tuple[int, int] = (1, 1)
    skip: frozenset[Key] = frozenset()  # what an earlier run has proven
    done: dict[Key, Cell] = field(default_factory=dict)  # of a run that goes on
    took: dict[TaskKey, float] = field(default_factory=dict)  # in earlier runs, and so far

    @property
    def sides(self) -> list[str]:
        return SIDES[self.kind]

    def pytest_words(self) -> list[str]:
        """What pytest is told: the guards are in suites/ unless a path says otherwise."""
        named = any(is_place(self.words, index) for index in range(len(self.words)))
        return ["--profile", self.profile, *([] if named else ["suites"]), *self.words]

    def place(self) -> Path:
        """Where workers stand: the names of guards depend on it, and on nothing else."""
        named = [
            Path(word.partition("::")[0])
            for index, word in enumerate(self.words)
            if is_place(self.words, index)
        ]
        folders = [path if path.is_dir() else path.parent for path in named]
        if not folders or any(folder.is_relative_to(paths.project()) for folder in folders):
            return paths.project()
        return Path(os.path.commonpath(folders))


TAKES_A_VALUE = ("-k", "-m", "-p", "-c", "-o", "-W", "-r", "--rootdir", "--confcutdir")


def is_place(words: list[str], index: int) -> bool:
    """Whether a word names guards by their path, and is not the value of an option before it."""
    if index and words[index - 1] in TAKES_A_VALUE:
        return False
    return Path(words[index].partition("::")[0]).exists()


class Left:
    """The cells of one release and the sides still to be run."""

    def __init__(self, asked: Asked, target: Target, earlier: Earlier = lambda _: ()) -> None:
        self.asked = asked
        self.target = target
        self.earlier = earlier  # what other runs saw of a cell, side by side
        self.on = OnRelease(target.name, asked.device)
        self.cells: dict[tuple[str, str], Cell] = {}  # by toggle and guard
        self.waiting: deque[TaskKey] = deque()
        self.alone: dict[TaskKey, str] = {}  # run again, and what ended them the first time
        self.tasks: frozenset[TaskKey] = frozenset()
        self.known = False

    def plan(self, collected: Collected) -> list[Cell]:
        """Settle what there is to do from what a first worker collected."""
        self.known = True
        self.on.device = collected.device
        self.on.seconds_to_start = collected.seconds
        self.on.problems += collected.problems
        if not collected.tasks:
            words = " ".join(self.asked.words) or "suites"
            self.on.problems.append(f"pytest collects no guard of what was asked for: {words}")
        self.on.problems += [
            f"{toggle.id} has a guard: take `unguarded` out of its file"
            for toggle in self.asked.toggles
            if toggle.unguarded and any(task.toggle == toggle.id for task in collected.tasks)
        ]
        self.tasks = frozenset(task.key for task in collected.tasks)
        for task in filter(self._mine, collected.tasks):
            pair = task.toggle, task.guard
            cell = self.cells.get(pair)
            if cell is None:
                cell = self.cells[pair] = self._cell(task)
            if cell.verdict is None and task.side not in cell.sides:
                self.waiting.append(task.key)
        for cell in self.cells.values():  # of a run that was stopped just before it could
            if cell.verdict is None and set(cell.sides) >= set(self.asked.sides):
                self._judge_or_go_on(cell)
        self.waiting = deque(sorted(self.waiting, key=self._turn))
        if not self.asked.words:
            without = self._unguarded({task.toggle for task in collected.tasks})
            self.on.unguarded = [one.id for one in without if not one.unguarded]
            self.on.known_unguarded = [one.id for one in without if one.unguarded]
        return list(self.cells.values())

    def _mine(self, task: Task) -> bool:
        part, parts = self.asked.shard
        if _number(f"{task.toggle} {task.guard}") % parts != part - 1:
            return False
        return self._key(task) not in self.asked.skip

    def _key(self, task: Task) -> Key:
        return self.target.name, self.on.device, task.toggle, task.guard

    def _cell(self, task: Task) -> Cell:
        known = self.asked.done.get(self._key(task))
        if known is not None:
            return known
        cell = Cell(task.guard, task.toggle, self.target.name, self.on.device, task.state)
        if task.broken:
            cell.verdict, cell.why = Verdict.BROKEN, task.broken
        elif task.problem:
            cell.verdict, cell.why = Verdict.STALE, task.problem
        elif task.na:
            cell.verdict, cell.why = Verdict.NA, task.na
        return cell

    def _turn(self, task: TaskKey) -> tuple[int, float]:
        """The longest cells first, so that none is left over for one core at the end.

        Their second sides come after all first ones, or as the first one ends: see `_goes_on`.
        """
        sides, took = self.asked.sides, self.asked.took
        of_cell = [took.get((*task[:2], side), math.inf) for side in sides]
        return sides.index(task[2]) if task[2] in sides else 0, -sum(of_cell)

    def _goes_on(self, cell: Cell) -> None:
        """The cell's other side is next: whoever is free now is who has the cell's code ready."""
        for task in [each for each in self.waiting if each[:2] == (cell.toggle, cell.guard)]:
            if task not in self.alone:
                self.waiting.remove(task)
                self.waiting.appendleft(task)

    def _unguarded(self, guarded: set[str]) -> list[Toggle]:
        return [
            toggle
            for toggle in self.asked.toggles
            if self.on.states.get(toggle.id) in ("fixed", "buggy", "stale")
            and self.on.device in {device.value for device in toggle.devices}
            and toggle.id not in guarded
        ]

    def again_alone(self, task: TaskKey, why: str) -> bool:
        """Whoever ran a task was ended, perhaps by another task: it gets a second chance, alone."""
        if task in self.alone:
            return False
        self.alone[task] = why
        self.waiting.append(task)
        return True

    def add(self, cell: Cell, side: Side) -> bool:
        """A side has come, or has come again; gives whether the cell is judged now."""
        side.first = self.alone.pop((cell.toggle, cell.guard, side.side), "")
        known, took = cell.sides.get(side.side), side.seconds + side.overhead
        if known is None:
            cell.sides[side.side] = side
            self.asked.took.setdefault((cell.toggle, cell.guard, side.side), took)
        else:
            known.again.append(Again(side.outcome, side.headline, took, first=side.first))
        if set(cell.sides) >= set(self.asked.sides):
            return self._judge_or_go_on(cell)
        self._goes_on(cell)
        return False

    def again(self, task: TaskKey) -> Side | None:
        """The failure of which a task is to run what failed: again, or `ahead` of its first run."""
        sides = self.cells[task[:2]].sides
        return sides["buggy"] if task[2] in sides or self.ahead(task) else None

    def ahead(self, task: TaskKey) -> bool:
        """Whether the other side has found an example, which a first run may never meet."""
        buggy = self.cells[task[:2]].sides.get("buggy")
        fresh = task[2] not in self.cells[task[:2]].sides
        return fresh and buggy is not None and buggy.way is Way.EXAMPLE

    def _judge_or_go_on(self, cell: Cell) -> bool:
        """Judge a cell, or have a side of it run again: which one, no guard can know before."""
        if self.asked.kind == "prove" and (wanted := verdicts.missing(cell)):
            if verdicts.is_long(cell):
                wanted = self._less(cell, wanted)
            if wanted:
                self.waiting.appendleft((cell.toggle, cell.guard, _chance.choice(wanted)))
                return False
        verdicts.judge(cell)
        return True

    def _less(self, cell: Cell, wanted: list[str]) -> list[str]:
        """What other runs saw stands for what has to be run; one that differs tells as well."""
        known = {again.run for side in cell.sides.values() for again in side.again}
        for name, again in self.earlier(cell):
            if again.run in known:
                continue
            if name in wanted or not verdicts.holds(name, again.outcome):
                cell.sides[name].again.append(again)
            if name in wanted:
                wanted.remove(name)
        return verdicts.missing(cell)


_chance = random.SystemRandom()


def shard(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not (part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        raise ValueError(f"'{text}' is no shard: say 1/3, 2/3 and 3/3")
    return int(part), int(parts)


def proven(cells: Iterable[Cell]) -> frozenset[Key]:
    return frozenset(cell.key for cell in cells if cell.verdict and cell.verdict.good)


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
