"""Nights that never were, written through the real store."""

from __future__ import annotations

import datetime
from pathlib import Path

from harness.history import lines, window
from harness.history.values import History, Line
from harness.store.database import Store
from harness.store.eval.values import Answer, Compared, Evaluation, Judged, Served
from harness.store.fuzz.values import Failure, FuzzRun, Searched
from harness.store.matrix.values import Attempt, MatrixRun, RanCell
from harness.store.matrix.values import Outcome as Ended
from harness.store.mutate.faults import Fault
from harness.store.mutate.values import Fate, Fated, Mutation
from harness.store.prove.values import Cell, OnRelease, Outcome, Run, Side, Verdict

FIRST = datetime.datetime(2026, 11, 1, 23, 0, tzinfo=datetime.UTC)
NOW = datetime.datetime(2026, 11, 30, 8, 0, tzinfo=datetime.UTC)
GUARD = "suites/kv_indices/test_kv_indices.py::test_rows"
SCORES = {"o": Verdict.PROVEN, "x": Verdict.BROKEN, "t": Verdict.TOOTHLESS, "?": Verdict.NA}
ENDS = {
    "o": [Ended.GREEN],
    "x": [Ended.RED],
    "f": [Ended.RED, Ended.GREEN],
    "?": [Ended.NOT_READY],
    "l": [Ended.LOST],
    "c": [Ended.CRASH],
    "r": [Ended.RED],
}


class Nights:
    """A store, to be filled night by night; a night is written as a letter a thing.

    o passes, x fails, t is toothless, f fails and passes when it is run again, ? says nothing,
    - is not run, r fails and the run is stopped before it is run again.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.store = Store(file)
        self.number = 0

    def at(self, night: int, hours: float = 0.0) -> str:
        moment = FIRST + datetime.timedelta(days=night, hours=hours)
        return moment.isoformat(timespec="seconds")

    def _name(self, kind: str) -> str:
        self.number += 1
        return f"{kind}-{self.number:04d}"

    def prove(
        self,
        night: int,
        cells: dict[str, str],
        *,
        release: str = "0.5.18",
        commit: str = "aaa",
        status: str = "finished",
        hours: float = 0.0,
        seconds: float = 2.0,
        problems: tuple[str, ...] = (),
        started: str = "",
    ) -> str:
        name = self._name("prove")
        run = Run(name, "prove", started or self.at(night, hours), settings={"commit": commit})
        self.store.prove.begin(run)
        versions = {"torch": "2.13.0"}
        self.store.prove.met(name, OnRelease(release, "cpu", versions, problems=list(problems)))
        for toggle, letter in cells.items():
            cell = Cell(f"{GUARD}_{toggle}", toggle, release, "cpu", "fixed")
            self.store.prove.plan(name, [cell])
            if letter == "-":
                continue
            passed = Side("fixed", Outcome.PASSED, seconds, reach=3, replay="./unfix replay-it")
            if letter == "x":
                passed = Side(
                    *("fixed", Outcome.FAILED, seconds, 0.0, 3, {}, "assert 3 >= 6"),
                    *(["batch=Batch(lengths=(1,))"], "Traceback:\n  line\nAssertionError: 3 >= 6"),
                    replay=f"./unfix replay {toggle}",
                )
            if letter == "f":
                passed.first = "segfault"
            self.store.prove.side(name, cell, passed)
            cell.verdict = SCORES.get(letter, Verdict.PROVEN)
            self.store.prove.judged(name, cell)
        self.store.prove.end(name, status, 60.0)
        return name

    def matrix(
        self,
        night: int,
        cells: dict[str, str],
        *,
        commit: str = "aaa",
        seconds: float = 10.0,
        device_seconds: float = 0.0,
        hours: float = 1.0,
        status: str = "finished",
        command: str = "unfix prove --release 0.5.18",
    ) -> str:
        name = self._name("matrix")
        values = {"release": "0.5.18", "device": "h200" if device_seconds else "cpu"}
        run = MatrixRun(
            *(name, "nightly", "cpu", "digest", len(cells), {}, self.at(night, hours)),
            commit=commit,
            cells=[
                RanCell(one, {**values, "kv": one}, "proof", command.split(), "") for one in cells
            ],
        )
        self.store.matrix.begin(run)
        ended = []
        for one, letter in cells.items():
            outcomes = ENDS.get(letter, [])
            for number, outcome in enumerate(outcomes, 1):
                attempt = Attempt(
                    *(number, outcome, f"ended {outcome}", self.at(night, hours), seconds),
                    *(
                        device_seconds,
                        "node-1",
                        f"log of {one}",
                        {},
                        number == len(outcomes) and letter != "r",
                    ),
                )
                ended.append((one, attempt))
        self.store.matrix.attempts(name, ended)
        run.status, run.seconds = status, 100.0
        self.store.matrix.end(run)
        return name

    def evaluation(
        self, night: int, verdict: Judged, *, failure: str = "", release: str = "0.5.18"
    ) -> str:
        name = self._name("eval")
        answers = [Answer("needle", 0, "p", "t", "t", True)]
        served = [
            Served(one, "llama", release, [], "cpu", seconds=5.0, answers=answers)
            for one in ("base", "triton")
        ]
        served[1].failure = failure
        compared = [Compared("base", "triton", "tokens", "needle", verdict, f"{verdict}: so it is")]
        started = datetime.datetime.fromisoformat(self.at(night, 2)).timestamp()
        self.store.eval.save(
            Evaluation(
                *(name, "cpu", "unfix eval cpu", started, 30.0, "done", "cpu", 0, 10, 0.01, 1),
                *(None, served, compared, [], {"unfix": "aaa"}),
            )
        )
        return name

    def fuzz(
        self, night: int, failing: tuple[str, ...] = (), *, examples: int = 500, left_out: str = ""
    ) -> str:
        name = self._name("fuzz")
        test = "suites/kv_indices/test_kv_indices.py::test_padding"
        kept = [
            Failure(
                *(one, test, "0.5.18", "assert 1 == 2"),
                '{"blob": "AAAA", "arguments": ["n=1"], "detail": "Traceback\\nboom"}',
            )
            for one in failing
        ]
        self.store.fuzz.save(
            FuzzRun(
                *(name, self.at(night, 3), "finished", 60.0, ["unfix", "fuzz"], "aaa", []),
                [Searched(test, "0.5.18", examples, 30.0, left_out)],
                kept,
            )
        )
        return name

    def mutate(self, night: int, fates: dict[str, Fate], problems: tuple[str, ...] = ()) -> str:
        name = self._name("mutate")
        run = Mutation(name, self.at(night, 4), "0.5.23", "finished", noted=list(problems))
        self.store.mutate.begin(run)
        for number, (fault, fate) in enumerate(fates.items(), 1):
            made = Fault(
                id=fault,
                operator="drop-addend",
                module="sglang.srt.mem_cache.memory_pool",
                qualname="ReqToTokenPool.alloc",
                path="memory_pool.py",
                kernel=False,
                start=10,
                end=15,
                line=7,
                first=7,
                last=7,
                before="a + 1",
                after="a",
                words="1 is no longer added",
            )
            passed = ["suites/pool_sizing/test_pool_sizing.py::test_rows"]
            self.store.mutate.fated(
                name, number, Fated(made, fate, passed=passed, diff="-a + 1\n+a")
            )
        self.store.mutate.end(run)
        return name

    def history(self, since: str = "30d", now: datetime.datetime = NOW) -> History:
        return lines.history(self.store, window.since(since, now), now)

    def line(self, words: str) -> Line:
        """The one whose key holds that."""
        (found,) = [line for line in self.history().lines if words in line.thing.key]
        return found


def over(nights: Nights, letters: str, name: str = "a") -> Line:
    """A cell of a matrix with a letter a night, beside one that passes each night."""
    for night, letter in enumerate(letters):
        nights.matrix(night, {name: letter, "beside": "o"})
    return nights.line(f" {name}")
