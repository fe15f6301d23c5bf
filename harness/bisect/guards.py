"""A guard of ours as a runner: one process imports the release, and each run is a fork of it."""

from __future__ import annotations

import ast
import contextlib
import difflib
import select
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness import paths, processes
from harness.bisect.commands import LONGEST
from harness.bisect.judging import Rules
from harness.bisect.runners import Choices, Job, Place
from harness.errors import NotReady, UnfixError
from harness.prove.messages import Collected, Ended, Failed, Fit, Key, Setting, Unfit
from harness.prove.run import TO_START
from harness.prove.verdicts import TELLING
from harness.prove.workers import GuardWorker
from harness.store.bisect.values import Answer, Trial
from harness.store.prove.values import Outcome, Side

KEPT = 3  # releases whose process is kept


def find(words: list[str]) -> str | None:
    """The node of the guard that a command of one word names, if it names one."""
    if len(words) != 1:
        return None
    file, colons, node = words[0].partition("::")
    if colons and Path(file).suffix == ".py":
        place = next((p for p in (Path(file), paths.project() / file) if p.is_file()), None)
        if place is None:
            raise UnfixError(f"there is no file {file}")
        return f"{place.resolve()}::{node}"
    bare = words[0].partition("[")[0]
    if not bare.startswith("test_") or not bare.isidentifier():
        return None
    found = [
        f"{path}::{words[0]}"
        for path in sorted((paths.project() / "suites").rglob("test_*.py"))
        if bare in _functions(path)
    ]
    if len(found) > 1:
        named = "\n  ".join(str(one) for one in found)
        raise UnfixError(f"{len(found)} guards are called {bare}; name one of:\n  {named}")
    if not found and shutil.which(words[0]) is None:
        raise UnfixError(_unknown(bare))
    return found[0] if found else None


def _unknown(name: str) -> str:
    suites = sorted((paths.project() / "suites").rglob("test_*.py"))
    known = sorted({each for path in suites for each in _functions(path)})
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"; near it: {', '.join(near)}" if near else ""
    return f"there is no command '{name}', and no guard of that name{hint}"


def _functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@dataclass
class _Going:
    """A job, and what its guards have said so far: a name may stand for several parameters."""

    index: int
    job: Job
    todo: list[Key] = field(default_factory=list)
    left: set[int] = field(default_factory=set)  # serials of what is running
    sides: list[Side] = field(default_factory=list)


@dataclass(frozen=True)
class _Living:
    """A release's process, and the tests that it collected."""

    worker: GuardWorker
    tasks: list[Key]


class Guards:
    """Runs a guard on a release at a time, each run in a fork of one process."""

    def __init__(
        self,
        node: str,
        rules: Rules,
        folder: Path,
        *,
        jobs: int,
        seconds: float,
        memory: int,
        device: str,
        profile: str,
        toggles: list[Path],
    ) -> None:
        self.node = node
        self.rules = rules
        self.folder = folder
        self.jobs = jobs if device == "cpu" else 1
        self.steady = device == "cpu"  # a seed decides everything there
        self.seconds = seconds
        self.memory = memory
        self.device = device
        self.profile = profile
        self.toggles = toggles
        self.only = ""  # of what the node names; empty: all of it
        self._living: dict[Place, _Living] = {}  # the one that was used last comes last
        self._made = 0

    def unfit(self, place: Place, choices: Choices) -> dict[str, str]:
        """What cannot be put into a living process: its module does not import here, and so on."""
        worker = self._on(place).worker
        worker.tell(Fit([(name, way.value) for name, way in choices]))
        while (said := worker.said()) is not None:
            for one in said:
                if isinstance(one, Unfit):
                    return one.reasons
        raise NotReady(f"SGLang {place.name} ended: {worker.last_words()}")

    def run(self, batch: list[Job]) -> Iterator[tuple[int, Trial]]:
        waiting = list(enumerate(batch))
        going: dict[int, _Going] = {}  # by each order's serial
        now: Place | None = None
        try:
            while waiting or going:
                while waiting and len({id(one) for one in going.values()}) < self.jobs:
                    place = waiting[0][1].place
                    if going and place != now:
                        break  # what runs elsewhere ends first
                    now, living = place, self._on(place)
                    one = _Going(*waiting.pop(0))
                    one.todo = list(filter(self._wanted, living.tasks))
                    self._order(one, going)
                assert now is not None
                for serial, side in self._heard(now, going):
                    one = going.pop(serial)
                    one.left.discard(serial)
                    one.sides.append(side)
                    self._order(one, going)
                    if not one.left:
                        yield one.index, self._trial(one)
        except BaseException:
            self.close()
            raise

    def _order(self, one: _Going, going: dict[int, _Going]) -> None:
        """Have its tests run: all at once where each has a fork, else one after the other."""
        while one.todo and (self.steady or not one.left):
            worker = self._on(one.job.place).worker
            under = [(name, way.value) for name, way in one.job.choices]
            serial = worker.order(one.todo.pop(0), self.seconds, self.memory, under)
            one.left.add(serial)
            going[serial] = one

    def close(self) -> None:
        while self._living:
            self._end(next(iter(self._living)))
        shutil.rmtree(self.folder, ignore_errors=True)

    # Workers

    def _on(self, place: Place) -> _Living:
        """The worker of a release; the last few are kept, since importing is what takes long."""
        living = self._living.pop(place, None) or self._start(place)
        self._living[place] = living
        while len(self._living) > KEPT:
            self._end(next(iter(self._living)))
        return living

    def _end(self, place: Place, kill: bool = False) -> int:
        return self._living.pop(place).worker.end(kill)

    def _start(self, place: Place) -> _Living:
        self._made += 1
        self.folder.mkdir(parents=True, exist_ok=True)
        setting = Setting(
            release=place.name,
            words=["--profile", self.profile, self.node],
            sides=[],
            toggles=[],
            folder=tempfile.mkdtemp(dir=self.folder),
            device=self.device,
        )
        log = self.folder / f"{place.name}-{self._made}.log"
        file = Path(self.node.partition("::")[0])
        root = paths.project() if file.is_relative_to(paths.project()) else file.parent
        worker = GuardWorker(place.python, setting, self.toggles, root, log)
        try:
            said = self._first(worker, place)
            if said.problems or not said.tasks:
                why = "\n".join(said.problems) or "it collects no test that guards anything"
                raise UnfixError(f"{self.node} cannot be run on SGLang {place.name}: {why}")
        except BaseException:
            worker.end()
            raise
        worker.collected(said.tasks)
        return _Living(worker, [task.key for task in said.tasks])

    def _first(self, worker: GuardWorker, place: Place) -> Collected:
        said = worker.first(TO_START)
        if isinstance(said, Collected):
            return said
        if isinstance(said, Failed):
            raise NotReady(
                f"{self.node} on SGLang {place.name}: {said.problem}\n{worker.last_words()}"
            )
        raise NotReady(f"SGLang {place.name} did not start: {worker.last_words()}")

    def _heard(self, place: Place, going: dict[int, _Going]) -> list[tuple[int, Side]]:
        """What has ended; a worker that is gone takes what it ran with it."""
        worker = self._living[place].worker
        ready = select.select([worker.read_end], [], [], 0.2)[0]
        said = worker.said() if ready else []
        overdue = worker.overdue(time.monotonic(), TO_START, self.steady)
        if said is None or overdue:
            code = self._end(place, kill=overdue)
            return [(serial, _death(code, overdue, self.seconds)) for serial in going]
        ended = [one for one in said if isinstance(one, Ended)]
        for one in ended:
            worker.ended(one.serial)
        if any(one.lost for one in ended):
            self._end(place)
        return [(one.serial, one.side) for one in ended]

    # Telling

    def _wanted(self, task: Key) -> bool:
        return not self.only or task[1] == self.only or task[1].startswith(f"{self.only}[")

    def _trial(self, one: _Going) -> Trial:
        """One answer; of several parameters those that do not apply here have no say."""
        applied = [side for side in one.sides if side.outcome is not Outcome.NA]
        by_answer: dict[Answer, tuple[str, Side]] = {}
        for each in applied or one.sides:
            answer, how = self._answer(each)
            by_answer[answer] = how, each
        answer = next(
            a for a in (Answer.FAILS, Answer.CANNOT_TELL, Answer.PASSES) if a in by_answer
        )
        how, side = by_answer[answer]
        ran: dict[str, int] = {}
        for each in one.sides:
            for name, count in each.ran.items():
                ran[name] = ran.get(name, 0) + count
        known = not any(each.outcome is Outcome.LOST for each in one.sides)
        return one.job.came_to(
            answer,
            how,
            sum(each.seconds + each.overhead for each in one.sides),
            ran=ran if known and one.job.choices else None,
            output="\n".join([*side.example, side.detail])[-LONGEST:].strip(),
            replay=self._replay(one.job),
        )

    def _answer(self, side: Side) -> tuple[Answer, str]:
        if side.outcome is Outcome.PASSED:
            return Answer.PASSES, "passed"
        words = f"{side.outcome.value}: {side.headline}".strip(": ")
        if side.outcome not in TELLING:
            # Another exception, a hang, a lack of memory: no way in which a guard says no.
            return Answer.CANNOT_TELL, words
        return self.rules.symptomatic(Answer.FAILS, words, f"{side.headline}\n{side.detail}")

    def _replay(self, job: Job) -> str:
        words = ["./unfix", "exec", "--release", job.place.name]
        for name, direction in job.choices:
            words += [f"--{direction.value}", name]
        words += [word for folder in self.toggles for word in ("--toggles", str(folder))]
        node = self.node
        with contextlib.suppress(ValueError):
            file, _, rest = node.partition("::")
            node = f"{Path(file).relative_to(paths.project())}::{rest}"
        pytest = ["python", "-m", "pytest", "--profile", self.profile, node]
        pytest += ["--device", self.device] if self.device != "cpu" else []
        return shlex.join([*words, "--", *pytest])


def _death(code: int, overdue: bool, limit: float) -> Side:
    """What is known of a test that ended its worker."""
    if overdue:
        return Side("", Outcome.HANG, headline=f"it did not end within {limit:g} s")
    how = processes.signal_name(-code) if code < 0 else f"exit code {code}"
    return Side("", Outcome.LOST, headline=f"it ended its worker ({how})")
