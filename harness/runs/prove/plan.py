"""The request of a run, and the plan of its tasks on one release."""

from __future__ import annotations

import hashlib
import math
import os
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

from harness.core import paths
from harness.core.outcomes import Verdict
from harness.fixes.registry.schema import Toggle
from harness.guards import proof_exceptions, verdicts
from harness.guards.proof_exceptions import ProofException
from harness.store.prove.values import (
    CellResult,
    ReleaseFacts,
    RepeatMode,
    SideRepetition,
    SideResult,
)
from harness.workers.messages import GuardsCollected, GuardTask, TaskKey
from harness.workers.release_target import ReleaseTarget

CellKey = tuple[str, str, str, str]  # release, device, toggle, guard
SIDES_BY_KIND = {"prove": ["buggy", "fixed"], "lifecycle": ["as is"]}


class ModulesBuilt(Protocol):
    """CUDA modules that are built while guards run."""

    def is_missing(self, names: Iterable[str]) -> bool: ...


ReportBuilds = Callable[[int, int], None]  # how many are built, of how many
# From a release, the digest of its sources, the names of modules, and how many are built at once.
StartBuilds = Callable[[ReleaseTarget, str, set[str], int, ReportBuilds], ModulesBuilt | None]


@dataclass(frozen=True)
class ProveRequest:
    """A requested run of `prove` or of `lifecycle`."""

    kind: str
    targets: list[ReleaseTarget]
    toggles: list[Toggle]  # the whole registry, or the named toggles
    has_named_toggles: bool  # whether the call names some
    device: str = "cpu"
    jobs: int = 1
    side_timeout: float = 300.0  # the limit for one side of one cell
    memory_limit: int = 8 << 30
    profile: str = "default"
    pytest_arguments: list[str] = field(default_factory=list)  # further arguments of pytest
    guard_places: tuple[str, ...] = ("suites",)  # unless the arguments name a path
    toggle_folders: list[Path] = field(default_factory=list)  # further toggles
    shard: tuple[int, int] = (1, 1)
    seed: int = 0  # draws the order of the sides of each cell, and the seeds of its runs
    skipped_cells: frozenset[CellKey] = frozenset()  # the proven cells of an earlier run
    finished_cells: dict[CellKey, CellResult] = field(default_factory=dict)  # before a resumption
    known_seconds: dict[TaskKey, float] = field(default_factory=dict)  # in earlier runs and this
    exceptions: tuple[ProofException, ...] = ()  # the list of suites/proof_exceptions.yaml
    # Files whose guards run on another device in this run, by that device.
    files_by_device: dict[str, list[Path]] = field(default_factory=dict)
    start_builds: StartBuilds | None = None  # None: each guard builds by itself

    @property
    def runs_all_guards(self) -> bool:
        """Whether the run has every guard of its toggles, or a shard of them."""
        return not self.pytest_arguments

    @property
    def sides(self) -> list[str]:
        return SIDES_BY_KIND[self.kind]

    def split_by_device(self) -> list[ProveRequest]:
        """Return the parts of the run on each of its devices."""
        elsewhere = [
            replace(
                self,
                device=device,
                pytest_arguments=self._narrow_paths(files),
                files_by_device={},
            )
            for device, files in self.files_by_device.items()
        ]
        return [self, *elsewhere]

    def _narrow_paths(self, files: list[Path]) -> list[str]:
        """Return the arguments of pytest with those paths alone that lead to these files."""
        words: list[str] = []
        left = {*files}
        for index, word in enumerate(self.pytest_arguments):
            path = Path(word.partition("::")[0]).resolve()
            if not is_guard_path(self.pytest_arguments, index):
                words.append(word)
            elif path in files:
                words.append(word)
                left.discard(path)
        return [*words, *(str(file) for file in files if file in left)]

    def build_pytest_arguments(self) -> list[str]:
        """Build the arguments of pytest, with the places of guards unless they name a path."""
        named = any(
            is_guard_path(self.pytest_arguments, index)
            for index in range(len(self.pytest_arguments))
        )
        return [
            "--profile",
            self.profile,
            *([] if named else self.guard_places),
            *self.pytest_arguments,
        ]

    def find_working_folder(self) -> Path:
        """Find the working folder of the workers, the only thing that guards' names depend on."""
        named = [
            Path(word.partition("::")[0])
            for index, word in enumerate(self.pytest_arguments)
            if is_guard_path(self.pytest_arguments, index)
        ]
        folders = [path if path.is_dir() else path.parent for path in named]
        if not folders or any(folder.is_relative_to(paths.project_folder()) for folder in folders):
            return paths.project_folder()
        return Path(os.path.commonpath(folders))


OPTIONS_WITH_VALUE = ("-k", "-m", "-p", "-c", "-o", "-W", "-r", "--rootdir", "--confcutdir")


def is_guard_path(arguments: list[str], index: int) -> bool:
    """Return whether an argument is a path of guards, and not the previous option's value."""
    if index and arguments[index - 1] in OPTIONS_WITH_VALUE:
        return False
    return Path(arguments[index].partition("::")[0]).exists()


class ReleasePlan:
    """The cells of one release, and the sides that have not run yet."""

    def __init__(self, request: ProveRequest, target: ReleaseTarget) -> None:
        self.request = request
        self.target = target
        self.facts = ReleaseFacts(target.name, request.device)
        self.cells: dict[tuple[str, str], CellResult] = {}  # by toggle and guard
        self.waiting_tasks: deque[TaskKey] = deque()

    def plan_tasks(self, collected: GuardsCollected) -> list[CellResult]:
        """Plan the tasks from the guards that the first worker collected."""
        self.facts.device = collected.device
        self.facts.seconds_to_start = collected.seconds
        self.facts.problems += collected.problems
        if not collected.tasks:
            words = " ".join(self.request.pytest_arguments) or "suites"
            self.facts.problems.append(f"pytest collects no guard with these arguments: {words}")
        for task in filter(self._is_in_this_run, collected.tasks):
            pair = task.toggle, task.guard
            cell = self.cells.get(pair)
            if cell is None:
                cell = self.cells[pair] = self._find_or_make_cell(task)
        for cell in self.cells.values():
            if cell.verdict is None:
                self._judge_or_schedule(cell)
        longest_first = sorted(self.waiting_tasks, key=self._make_sort_key)
        self.waiting_tasks.clear()
        self.waiting_tasks.extend(longest_first)
        if self.request.runs_all_guards:
            self._note_unguarded_toggles(collected)
        self._report_needless_exceptions(self.cells.values())
        return list(self.cells.values())

    def _is_in_this_run(self, task: GuardTask) -> bool:
        part, parts = self.request.shard
        if _hash_to_int(f"{task.toggle} {task.guard}") % parts != part - 1:
            return False
        file = self.request.find_working_folder() / task.guard.partition("::")[0]
        if any(file in files for files in self.request.files_by_device.values()):
            return False
        return self._make_cell_key(task) not in self.request.skipped_cells

    def _make_cell_key(self, task: GuardTask) -> CellKey:
        return self.target.name, self.facts.device, task.toggle, task.guard

    def _find_or_make_cell(self, task: GuardTask) -> CellResult:
        known = self.request.finished_cells.get(self._make_cell_key(task))
        if known is not None:
            return known
        cell = CellResult(task.guard, task.toggle, self.target.name, self.facts.device, task.state)
        cell.moment = task.moment
        if task.broken_reason:
            cell.verdict, cell.why = Verdict.BROKEN, task.broken_reason
        elif task.problem:
            cell.verdict, cell.why = Verdict.STALE, task.problem
        elif task.not_applicable_reason:
            cell.verdict, cell.why = Verdict.NA, task.not_applicable_reason
            self._check_applicability(cell)
        return cell

    def _check_applicability(self, cell: CellResult) -> None:
        """Hold a judged cell against the list of exceptions, both ways."""
        if self._is_in_suites(cell):
            proof_exceptions.explain_not_applicable(cell, self._exceptions)
            self._report_needless_exceptions([cell])

    def _is_in_suites(self, cell: CellResult) -> bool:
        """Return whether a cell is that of a guard in the project's `suites`."""
        file = self.request.find_working_folder() / cell.guard.partition("::")[0]
        return proof_exceptions.is_suite_guard(file)

    def _make_sort_key(self, task: TaskKey) -> float:
        """Sort the longest cells first, so that no core has a long one alone at the end."""
        sides, took = self.request.sides, self.request.known_seconds
        return -sum(took.get((*task[:2], side), math.inf) for side in sides)

    def _note_unguarded_toggles(self, collected: GuardsCollected) -> None:
        """Note the toggles of the release that no guard names, with the list's reasons."""
        guarded = {task.toggle for task in collected.tasks}
        states = {toggle.id: self.facts.states.get(toggle.id) for toggle in self.request.toggles}
        self.facts.unguarded = []
        for toggle, state in states.items():
            expected = proof_exceptions.find_exception(self._exceptions, toggle)
            if toggle in guarded or state not in (*proof_exceptions.PRESENT_STATES, "stale"):
                continue
            if expected is None or state == "stale":
                self.facts.unguarded.append(toggle)
            else:
                self.facts.expected_unguarded[toggle] = expected.reason

    @cached_property
    def _exceptions(self) -> list[ProofException]:
        """The exceptions of this release and device."""
        version, device = self.target.sources.version, self.facts.device
        return [e for e in self.request.exceptions if e.applies_to(version, device)]

    def _report_needless_exceptions(self, cells: Iterable[CellResult]) -> None:
        ours = filter(self._is_in_suites, cells)
        problems = proof_exceptions.find_needless_exceptions(
            ours, self._exceptions, self.target.sources.version
        )
        known = self.facts.problems
        known += [problem for problem in problems if problem not in known]

    def add_side_result(self, cell: CellResult, result: SideResult) -> bool:
        """Add the result of a side, or of its repetition; return whether the cell has a verdict."""
        cell.order.append(result.side)
        known, took = cell.sides.get(result.side), result.seconds + result.overhead
        if known is None:
            cell.sides[result.side] = result
            self.request.known_seconds.setdefault((cell.toggle, cell.guard, result.side), took)
        else:
            known.again.append(
                SideRepetition(result.outcome, result.headline, took, first=result.first)
            )
        return self._judge_or_schedule(cell)

    def find_failure_to_repeat(self, task: TaskKey) -> SideResult | None:
        """Find the failure whose example a task runs, as a repetition or before its first run."""
        sides = self.cells[task[:2]].sides
        is_known = task[2] in sides or self.has_example_to_run_first(task)
        return sides.get("buggy") if is_known else None

    def has_example_to_run_first(self, task: TaskKey) -> bool:
        """Return whether the other side found an example, which a first run may never draw."""
        buggy = self.cells[task[:2]].sides.get("buggy")
        fresh = task[2] not in self.cells[task[:2]].sides
        return fresh and buggy is not None and buggy.way is RepeatMode.EXAMPLE

    def _judge_or_schedule(self, cell: CellResult) -> bool:
        """Judge a cell, or draw the side that runs next, so that no guard can infer its side."""
        missing = self._find_missing_sides(cell)
        if missing:
            # Next, since the free worker has the cell's code compiled.
            side = self._make_random(cell, "order").choice(missing)
            self.waiting_tasks.appendleft((cell.toggle, cell.guard, side))
            return False
        verdicts.judge_cell(cell)
        self._check_applicability(cell)
        return True

    def _find_missing_sides(self, cell: CellResult) -> list[str]:
        if self.request.kind != "prove":
            return [side for side in self.request.sides if side not in cell.sides]
        return verdicts.find_missing_sides(cell)

    def count_missing_runs(self) -> int:
        """Count the first runs of sides that the planned cells still need."""
        open_cells = [cell for cell in self.cells.values() if cell.verdict is None]
        return sum(len(self.request.sides) - len(cell.sides) for cell in open_cells)

    def draw_seed(self, task: TaskKey) -> int:
        """Draw the seed of a task's random numbers."""
        return self._make_random(self.cells[task[:2]], "numbers").getrandbits(32)

    def _make_random(self, cell: CellResult, purpose: str) -> random.Random:
        """Make the random numbers for a cell's next run, from the seed and the cell alone."""
        run_count = sum(1 + len(side.again) for side in cell.sides.values())
        return random.Random(f"{self.request.seed} {cell.key} {run_count} {purpose}")


def parse_shard(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not (part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        raise ValueError(f"'{text}' is no shard: say 1/3, 2/3 and 3/3")
    return int(part), int(parts)


def proven_cell_keys(cells: Iterable[CellResult]) -> frozenset[CellKey]:
    return frozenset(cell.key for cell in cells if cell.verdict and cell.verdict.is_good)


def _hash_to_int(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
