"""A fuzzing run: slices over tests over releases, until the time is over.

One thread and one `select`. A release has its share of the time; the next one's worker imports
meanwhile. Whatever fails is written to a file at once, so nothing that ends the run can lose it.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import shutil
import signal
import time

from harness import paths, stops
from harness.errors import NotReady, UnfixError
from harness.fuzz import failures
from harness.fuzz.lanes import GRACE, Asked, Lane, Running, covered
from harness.fuzz.values import Collected, Ended, Found, Fuzzed, Kept, Sliced
from harness.prove.messages import Failed
from harness.store.prove.values import Outcome

AHEAD = 2  # releases whose workers live at once
MOST_LOST = 3  # workers in a row, before a release is given up
DEATHS = {
    Outcome.SEGFAULT,
    Outcome.ABORT,
    Outcome.KILLED,
    Outcome.OUT_OF_MEMORY,
    Outcome.EXITED,
    Outcome.LOST,
    Outcome.HANG,
}


class Teller:
    """Who wants to know how a run goes; this one does not."""

    def started(self, release: str) -> None: ...

    def met(self, release: str, tests: int, left_out: int, seconds: float) -> None: ...

    def moved(self, run: Fuzzed) -> None: ...

    def failed(self, kept: Kept) -> None: ...

    def problem(self, release: str, text: str) -> None: ...


class Fuzzing:
    """One run, from its first worker to its end."""

    def __init__(self, asked: Asked, teller: Teller) -> None:
        self.asked = asked
        self.teller = teller
        self.random = random.Random(asked.seed)
        self.folder = paths.state() / "fuzz" / f"run-{os.getpid()}"
        self.lanes = [Lane(asked, each, self.folder / each.name) for each in asked.targets]
        self.run = Fuzzed(seed=asked.seed, budget=asked.seconds, under=asked.under)
        self.started = time.monotonic()
        self.ends = self.started + asked.seconds

    def go(self) -> None:
        self.run.status = "stopped"
        with stops.noted() as came, contextlib.ExitStack() as ending:
            # Each of these is done, whatever becomes of the others: a disk may be full.
            ending.callback(shutil.rmtree, self.folder, ignore_errors=True)
            ending.callback(self._tell)
            for lane in self.lanes:
                ending.callback(lane.end)
                ending.callback(self._rescue, lane)
            while lanes := [lane for lane in self.lanes if not lane.over]:
                if came:  # here alone: what came of an example is kept whole, and once
                    raise KeyboardInterrupt
                for lane in lanes[:AHEAD]:
                    if lane.worker is None:
                        self.teller.started(lane.target.name)
                        lane.start()
                if lanes[0].ready:
                    self._hand_out(lanes[0])
                self._listen(lanes[:AHEAD])
                self._look_after(lanes[0])
            self.run.status = "finished"

    # Slices

    def _hand_out(self, lane: Lane) -> None:
        now = time.monotonic()
        if not lane.until:
            left = [each for each in self.lanes if not each.over]
            lane.share(now, now + max(0.0, self.ends - now) / len(left))
        while len(lane.running) < self.asked.jobs and time.monotonic() < lane.until:
            wanted = lane.next()
            if wanted is None:
                break
            lane.slice(*wanted, seed=self.random.randrange(2**63))
        if not lane.running:
            lane.end()  # its time is over, or nothing is left that an example could show

    # Listening

    def _listen(self, lanes: list[Lane]) -> None:
        ends = {lane.worker.read_end: lane for lane in lanes if lane.worker is not None}
        for end in select.select(list(ends), [], [], 0.1)[0]:
            lane = ends[end]
            assert lane.worker is not None
            said = lane.worker.said()
            if said is None:
                self._gone(lane)
            for each in said or ():
                if isinstance(each, Failed):
                    raise (UnfixError if each.wrong_call else NotReady)(
                        f"SGLang {lane.target.name}: {each.problem}"
                    )
                if isinstance(each, Collected):
                    self._collected(lane, each)
                elif isinstance(each, Ended):
                    self._ended(lane, each)
                self._tell()

    def _collected(self, lane: Lane, said: Collected) -> None:
        name = lane.target.name
        for problem in said.problems:
            self._problem(name, problem)
        if not said.tests:
            raise UnfixError(f"{' '.join(self.asked.words)}: pytest collects no test there")
        again = bool(lane.states)
        lane.met(said)
        if again:
            return
        self.run.tests += [state.tested for state in lane.states]
        left_out = sum(bool(test.left_out) for test in said.tests)
        self.teller.met(name, len(said.tests) - left_out, left_out, said.seconds)

    def _ended(self, lane: Lane, said: Ended) -> None:
        assert lane.worker is not None
        running = lane.running.pop(said.serial)
        running.state.running -= 1
        sliced = lane.worker.sliced(said.serial)
        outcome = Outcome.HANG if running.hung else Outcome(said.outcome)
        if sliced is None or outcome in DEATHS:
            self._died(lane, running, outcome, said)
        else:
            self._came_back(lane, running, outcome, said, sliced)
        lane.worker.forget(said.serial)

    def _came_back(
        self, lane: Lane, running: Running, outcome: Outcome, said: Ended, sliced: Sliced
    ) -> None:
        state = running.state
        if sliced.problem:
            raise NotReady(sliced.problem.removeprefix("NotReady: "))
        lane.lost = 0
        state.add(sliced)
        for key, count in sliced.known.items():
            lane.kept[state.test.name, key].again += count
        for found in sliced.found:
            self._keep(lane, running, found, said.detail if found.shrunk else "")
            if not found.shrunk:
                lane.shrink_later(state, found.key, found.blob)
        if outcome in (Outcome.NA, Outcome.SKIPPED):
            state.tested.left_out = said.headline
        elif outcome is not Outcome.PASSED and not sliced.found:
            state.tested.left_out = said.headline
            self._problem(lane.target.name, f"{state.test.name}: {said.headline}")

    def _died(self, lane: Lane, running: Running, outcome: Outcome, said: Ended) -> None:
        """A process that ended with its example costs that one; what it had found is kept."""
        assert lane.worker is not None
        state, note = running.state, lane.worker.note(running.asked.serial)
        for found in lane.worker.found(running.asked.serial):
            self._keep(lane, running, found, "")
        if note is None or not note.running:
            self._problem(lane.target.name, f"{state.test.name}: {outcome}: {said.headline}")
            state.tested.left_out = f"{outcome}: {said.headline}"
            return
        state.tested.examples += note.examples
        state.passed(1.0)
        words = f"an example took longer than {self.asked.limit:g} s"
        found = Found(
            error=outcome.value,
            where="",
            kind="",
            headline=words if running.hung else said.headline,
            arguments=note.arguments,
            blob=note.blob,
            examples=note.examples,
        )
        if (state.test.name, found.key) in lane.kept:
            # A process cannot look away from its own death: such a test has less and less time.
            lane.kept[state.test.name, found.key].again += 1
            state.without_news += 1
        self._keep(lane, running, found, said.detail)

    def _keep(self, lane: Lane, running: Running, found: Found, detail: str) -> None:
        test = running.state.test.name
        known = lane.kept.get((test, found.key))
        if known is not None and (known.repro.shrunk or not found.shrunk):
            return
        made = failures.repro(
            found,
            test,
            lane.target.name,
            self.asked.under,
            lane.versions,
            running.asked.seed,
            detail,
        )
        kept = failures.write(made, found.key, self.asked.folders)
        if known is not None:
            kept.again = known.again
            self.run.failures[self.run.failures.index(known)] = kept
        else:
            self.run.failures.append(kept)
            self.teller.failed(kept)
        lane.kept[test, found.key] = kept

    def _gone(self, lane: Lane) -> None:
        """A worker ended by itself, which no example should be able to do: it is replaced."""
        assert lane.worker is not None
        words = lane.worker.last_words()
        for serial, running in list(lane.running.items()):
            ended = Ended(serial, Outcome.LOST.value, "it ended its worker", words, [])
            self._died(lane, running, Outcome.LOST, ended)
        lane.running.clear()
        lane.lost += 1
        lane.stop()
        if not lane.states or lane.lost > MOST_LOST:
            how = "ended again and again" if lane.states else "did not start"
            raise NotReady(f"SGLang {lane.target.name} {how}: {words}")

    # Looking after

    def _look_after(self, lane: Lane) -> None:
        """End what hangs, and what is not done when the time is over."""
        if lane.worker is None:
            return
        now = time.monotonic()
        for serial, running in lane.running.items():
            note = lane.worker.note(serial)
            if note is None or not note.running or now - note.begun <= self.asked.limit:
                continue
            if now - note.begun > self.asked.limit + GRACE:
                _kill(note.pid, signal.SIGKILL)
            elif not running.hung:
                running.hung = True
                _kill(note.pid, signal.SIGABRT)  # it says where it is
        if lane.until and now > lane.until + GRACE:
            for running in lane.running.values():
                name = running.state.test.name
                self._problem(lane.target.name, f"{name}: an example was not done at the end")
            self._rescue(lane)
            lane.end()
        elif not lane.states and now > self.ends:
            raise NotReady(
                f"{self.asked.seconds:g} s were over before SGLang {lane.target.name} was "
                "imported: say more with --for"
            )

    def _rescue(self, lane: Lane) -> None:
        """What slices have found that nobody waits for any longer."""
        if lane.worker is None:
            return
        for serial, running in lane.running.items():
            note = lane.worker.note(serial)
            running.state.tested.examples += note.examples if note else 0
            for found in lane.worker.found(serial):
                self._keep(lane, running, found, "")
        lane.running.clear()

    # Telling

    def _problem(self, release: str, text: str) -> None:
        self.run.problems.append(f"SGLang {release}: {text}")
        self.teller.problem(release, text)

    def _tell(self) -> None:
        self.run.seconds = time.monotonic() - self.started
        self.run.coverage = [row for lane in self.lanes for row in covered(lane)]
        self.teller.moved(self.run)


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
