"""A run: workers over releases, cells over workers, each side kept as it ends.

One thread and one `select`. The earliest release with something to do goes first; the next one's
worker imports meanwhile, so that no core waits for an import. What is to run with the machine to
itself comes last of all.
"""

from __future__ import annotations

import secrets
import select
import shutil
import time

from harness import machine, paths, processes
from harness.matching.states import State, find
from harness.patching import diffs
from harness.prove.evidence import Earlier
from harness.prove.keeper import killed
from harness.prove.lanes import Lane
from harness.prove.messages import Collected, Ended, Failed, Key, Said
from harness.prove.plan import Asked, Left, Target
from harness.prove.workers import GuardWorker
from harness.store.prove.table import Proofs
from harness.store.prove.values import Cell, OnRelease, Outcome, Run, Side, Way

AHEAD = 2  # releases at once that have something to hand out, or will have
TO_START = 900.0  # seconds for an import, before it counts as one that hangs


class Teller:
    """Who wants to know how a run goes; this one does not."""

    def started(self, release: str) -> None: ...

    def met(self, on: OnRelease, cells: int, sides: int) -> None: ...

    def ended(self, cell: Cell, side: Side) -> None: ...

    def judged(self, cell: Cell) -> None: ...

    def problem(self, release: str, text: str) -> None: ...


class Proving:
    """One run, from its first worker to its end."""

    def __init__(self, asked: Asked, run: Run, store: Proofs, teller: Teller) -> None:
        self.asked = asked
        self.run = run
        self.store = store
        self.teller = teller
        self.folder = paths.state() / "runs" / run.id
        earlier = Earlier(store, run)
        lefts = [Left(asked, target, earlier) for target in asked.targets]
        self.lanes = [Lane(left, self.folder) for left in lefts]
        self.started = time.monotonic() - run.seconds

    def go(self) -> None:
        """Until nothing is left to do, or Ctrl-C: what is done by then is kept."""
        status = "stopped"
        self.store.begin(self.run)
        try:
            while lanes := self.at_work():
                for lane in lanes:
                    self._open(lane)
                self.hand_out(lanes)
                self._listen(lanes)
                for lane in lanes:
                    self._finish(lane)
            status = "finished"
        finally:
            for lane in self.lanes:
                lane.end()
            self.store.end(self.run.id, status, time.monotonic() - self.started)
            for lane in self.lanes:
                shutil.rmtree(lane.folder, ignore_errors=True)
            if not any(lane.left.on.problems for lane in self.lanes):
                shutil.rmtree(self.folder, ignore_errors=True)  # the logs

    # Starting

    def at_work(self) -> list[Lane]:
        """Those that have begun, and the next, while few of them have something to hand out."""
        left = [lane for lane in self.lanes if not lane.over]
        begun = [lane for lane in left if lane.started is not None]
        room = AHEAD - sum(not lane.finishing for lane in begun)
        return begun + [lane for lane in left if lane.started is None][: max(0, room)]

    def _open(self, lane: Lane) -> None:
        fresh = lane.started is None
        lane.start_workers()
        if fresh:
            self.teller.started(lane.left.target.name)
            # The worker imports meanwhile.
            _describe(lane.left.on, lane.left.target, self.asked)
            self.store.met(self.run.id, lane.left.on)

    def hand_out(self, lanes: list[Lane]) -> None:
        free = self.asked.jobs - sum(lane.in_flight for lane in lanes)
        last = all(lane.finishing for lane in lanes)
        for lane in lanes:
            while free > 0 and not any(each.runs_alone for each in lanes):
                if lane.waits_alone and not (last and free == self.asked.jobs):
                    break  # until nothing else runs, or will
                if (given := lane.next()) is None:
                    break
                worker, task = given
                again, whole = lane.left.again(task), lane.left.ahead(task)
                # A life is told with what the worker has; a proof has to hold with any.
                chance = secrets.randbits(32) if self.asked.kind == "prove" else None
                asked = self.asked
                limits = asked.seconds, asked.memory
                worker.order(task, *limits, chance=chance, again=again, whole=whole)
                free -= 1

    # Listening

    def _listen(self, lanes: list[Lane]) -> None:
        workers = {worker.read_end: (lane, worker) for lane in lanes for worker in lane.workers}
        if not workers:
            return
        for end in select.select(list(workers), [], [], 0.2)[0]:
            lane, worker = workers[end]
            said = worker.said()
            if said is None:
                self._gone(lane, worker)
            for each in said or ():
                self._take(lane, worker, each)
        now = time.monotonic()
        for lane, worker in workers.values():
            if worker in lane.workers and worker.overdue(now, TO_START, lane.forks):
                self._gone(lane, worker, overdue=True)

    def _take(self, lane: Lane, worker: GuardWorker, said: Said) -> None:
        if isinstance(said, Failed):
            words = worker.last_words()
            # Of a call that pytest cannot read, what it says is enough.
            why = words.rpartition("ERROR: ")[2] if said.wrong_call else words
            self._problem(lane, f"{said.problem}\n{why}")
            lane.give_up()
        elif isinstance(said, Collected):
            self._collected(lane, worker, said)
        elif isinstance(said, Ended):
            task = worker.ended(said.serial)
            # A GPU's memory has no limit for each test: others may have had what this one lacked.
            full = said.side.outcome is Outcome.OUT_OF_MEMORY and lane.left.on.device != "cpu"
            if full and lane.left.again_alone(task, said.side.headline):
                pass
            elif said.side.outcome is not Outcome.LOST:
                worker.reported[task[0]] += said.side.reach
                self._keep(lane, task, said.side)
            elif not lane.left.again_alone(task, said.side.headline):
                self._keep(lane, task, said.side)
            if said.lost:
                lane.retire(worker)

    def _collected(self, lane: Lane, worker: GuardWorker, said: Collected) -> None:
        left = lane.left
        lane.forks = said.forks
        worker.collected(said.tasks)
        if left.known:
            if frozenset(worker.numbers) != left.tasks:
                self._problem(lane, "two workers do not collect the same guards")
                lane.give_up()
            return
        cells = left.plan(said)
        self.store.met(self.run.id, left.on)
        self.store.plan(self.run.id, cells)
        for problem in left.on.problems:
            self.teller.problem(left.target.name, problem)
        self.teller.met(left.on, len(cells), len(left.waiting))
        for cell in cells:
            if cell.verdict is not None:
                self.store.judged(self.run.id, cell)
                self.teller.judged(cell)

    def _keep(self, lane: Lane, task: Key, side: Side) -> None:
        cell = lane.left.cells[task[:2]]
        first = side.side not in cell.sides
        judged = lane.left.add(cell, side)
        for each in cell.sides.values() if judged else (cell.sides[side.side],):
            self.store.side(self.run.id, cell, each)
        if first:
            self.teller.ended(cell, side)
        if judged:
            self.store.judged(self.run.id, cell)
            self.teller.judged(cell)

    def _gone(self, lane: Lane, worker: GuardWorker, overdue: bool = False) -> None:
        """A worker ended by itself, or had to be ended; what it ran is told or run again alone."""
        code = lane.retire(worker, kill=overdue)
        how = processes.signal_name(-code) if code < 0 else f"exit code {code}"
        if not worker.ready:
            when = "did not start in time" if overdue else "ended before it could begin"
            self._problem(lane, f"the worker {when} ({how}): {worker.last_words()}")
            lane.give_up()
        elif not worker.running:
            self._problem(lane, f"the worker ended while it had nothing to do ({how})")
            lane.give_up()
        for task in worker.running.values():
            toggle, _, side = task
            why = f"it ended its worker ({how})"
            if not lane.forks:
                died = _death(code, overdue, self.asked.seconds)
                died.side, died.detail, died.reach = side, worker.last_words(), worker.reach(toggle)
                died.way = Way.SEARCH
                self._keep(lane, task, died)
            elif not lane.left.again_alone(task, why):
                self._keep(lane, task, Side(side, Outcome.LOST, headline=f"run alone, {why} again"))

    # Ending

    def _finish(self, lane: Lane) -> None:
        if not lane.over or lane.ended:
            return
        lane.end()
        shutil.rmtree(lane.folder, ignore_errors=True)
        on = lane.left.on
        on.seconds = time.monotonic() - (lane.started or time.monotonic())
        self.store.met(self.run.id, on)
        self.run.releases.append(on)

    def _problem(self, lane: Lane, text: str) -> None:
        lane.left.on.problems.append(text)
        self.store.met(self.run.id, lane.left.on)
        self.teller.problem(lane.left.target.name, text)


def _describe(on: OnRelease, target: Target, asked: Asked) -> None:
    """What the sources and the environment say of a release."""
    facts = machine.facts(str(target.python))
    on.versions = facts.pop("versions")
    on.machine = facts
    for toggle in asked.toggles:
        finding = find(toggle, target.tree)
        on.states[toggle.id] = finding.state.value
        if finding.state in (State.FIXED, State.BUGGY):
            on.patches[toggle.id] = diffs.of(finding, target.tree)


def _death(code: int, overdue: bool, limit: float) -> Side:
    """How a test that ran in the worker itself ended it."""
    if overdue:
        return Side("", Outcome.HANG, headline=f"it did not end within {limit:g} s")
    if code >= 0:
        return Side("", Outcome.EXITED, headline=f"it ended its process with exit code {code}")
    return killed(-code)
