"""The suites asked about new toggles: which guards run the changed code, and which of them notice.

Each guard runs once with everything flipped that is asked about, which says whose code it runs;
then those that ran it once more for each toggle by itself, and as the release is.
"""

from __future__ import annotations

import select
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness import paths
from harness.adopt.following import FLIP
from harness.errors import NotReady
from harness.matching.states import State, find
from harness.mutate.looks import ENGINE
from harness.prove.messages import Collected, Ended, Failed, Key, Said, Setting
from harness.prove.plan import Target
from harness.prove.run import TO_START
from harness.prove.verdicts import TELLING
from harness.prove.workers import GuardWorker
from harness.registry.schema import Toggle
from harness.store.prove.values import Outcome, Side

SECONDS = 60.0  # for a guard on one side
MEMORY = 4 << 30
Under = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Answer:
    """What the suites say of one toggle on one release."""

    release: str
    runs: tuple[str, ...]  # guards that run its code
    notices: tuple[str, ...]  # those of them that fail without the fix, and pass with it
    asked: int


@dataclass
class _Asking:
    worker: GuardWorker
    jobs: int
    tasks: list[Key] = field(default_factory=list)

    def sides(self, wanted: Iterable[tuple[Key, Under]]) -> Iterator[tuple[Key, Under, Side]]:
        """What comes of guards under toggles, so many at a time."""
        waiting, going = list(wanted), dict[int, tuple[Key, Under]]()
        while waiting or going:
            while waiting and len(going) < self.jobs:
                task, under = waiting.pop(0)
                going[self.worker.order(task, SECONDS, MEMORY, under)] = task, under
            for one in _heard(self.worker):
                if isinstance(one, Ended):
                    self.worker.ended(one.serial)
                    yield *going.pop(one.serial), one.side


def ask(
    toggles: Sequence[Toggle],
    target: Target,
    suites: Path,
    folders: Sequence[Path],
    jobs: int,
    say: Callable[[str], None],
) -> dict[str, Answer]:
    """Every toggle that has its code there, asked of all suites but those with servers."""
    states = {one.id: find(one, target.tree).state for one in toggles}
    flips = {name: FLIP[state].value for name, state in states.items() if state in FLIP}
    if not flips:
        return {}
    paths.state().mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="ask-", dir=paths.state()))
    words = ["--profile", "smoke", str(suites), f"--ignore-glob=*/{ENGINE}"]
    setting = Setting(
        release=target.asked or target.name, words=words, folder=str(folder), sides=[], toggles=[]
    )
    worker = GuardWorker(target.python, setting, list(folders), suites.parent, folder / "log")
    try:
        asking = _Asking(worker, jobs, _collected(worker, target.name))
        say(f"asking {len(asking.tasks)} guards on SGLang {target.name}")
        return _answers(asking, flips, states, target.name)
    finally:
        worker.end()
        shutil.rmtree(folder, ignore_errors=True)


def _answers(
    asking: _Asking, flips: Mapping[str, str], states: Mapping[str, State], release: str
) -> dict[str, Answer]:
    every: Under = tuple(flips.items())
    ran: dict[str, list[Key]] = {name: [] for name in flips}
    flipped: dict[tuple[str, Key], Side] = {}
    for task, _, side in asking.sides((task, every) for task in asking.tasks):
        for name in flips:
            if side.ran.get(name):
                ran[name].append(task)
                flipped[name, task] = side
    if len(every) > 1:
        alone = ((task, ((name, flips[name]),)) for name, tasks in ran.items() for task in tasks)
        for task, ((name, _),), side in asking.sides(alone):
            flipped[name, task] = side
    runners = sorted({task for tasks in ran.values() for task in tasks})
    as_is = {task: side for task, _, side in asking.sides((task, ()) for task in runners)}
    return {
        name: Answer(
            release,
            tuple(sorted(task[1] for task in tasks)),
            tuple(
                sorted(
                    task[1]
                    for task in tasks
                    if _notices(flipped[name, task], as_is[task], states[name])
                )
            ),
            len(asking.tasks),
        )
        for name, tasks in ran.items()
    }


def _notices(flipped: Side, as_is: Side, state: State) -> bool:
    fixed, buggy = (as_is, flipped) if state is State.FIXED else (flipped, as_is)
    return fixed.outcome is Outcome.PASSED and buggy.outcome in TELLING


def _collected(worker: GuardWorker, release: str) -> list[Key]:
    said = worker.first(TO_START)
    if isinstance(said, Collected):
        worker.collected(said.tasks)
        return [task.key for task in said.tasks]
    if isinstance(said, Failed):
        raise NotReady(f"no suite can be asked on SGLang {release}: {said.problem}")
    raise NotReady(f"SGLang {release} did not start: {worker.last_words()}")


def _heard(worker: GuardWorker) -> list[Said]:
    if not select.select([worker.read_end], [], [], 0.5)[0]:
        return []
    said = worker.said()
    if said is None:
        raise NotReady(f"the process that asked the suites is gone: {worker.last_words()}")
    return said
