"""Simulated nights, written through the real store."""

from __future__ import annotations

import datetime
import functools
from pathlib import Path

import msgspec

from harness.core.outcomes import Outcome, RunStatus, Verdict
from harness.runs.history import time_window, timelines
from harness.runs.history.values import NightHistory, Timeline
from harness.store.bisect.table import BisectTable
from harness.store.bisect.values import BisectSearch
from harness.store.database import Store
from harness.store.eval.table import EvalTable
from harness.store.eval.values import ComparisonResult, Evaluation, ItemAnswer, ServedConfiguration
from harness.store.fuzz.table import FuzzTable
from harness.store.fuzz.values import (
    FailureRecord,
    FoundFailure,
    FuzzRun,
    FuzzTestResult,
    RunFailure,
)
from harness.store.matrix.table import MatrixTable
from harness.store.matrix.values import CellAttempt, MatrixCellResult, MatrixRun
from harness.store.mutate.faults import MutationFault
from harness.store.mutate.table import MutationTable
from harness.store.mutate.values import FaultResult, MutationRun
from harness.store.prove.table import ProveTable
from harness.store.prove.values import CellResult, ProveRun, ReleaseFacts, SideResult

FIRST = datetime.datetime(2026, 11, 1, 23, 0, tzinfo=datetime.UTC)
NOW = datetime.datetime(2026, 11, 30, 8, 0, tzinfo=datetime.UTC)
GUARD = "suites/kv_indices/test_kv_indices.py::test_rows"
SCORES = {
    "o": Verdict.PROVEN,
    "x": Verdict.BROKEN,
    "t": Verdict.TOOTHLESS,
    "?": Verdict.NA,
}
ENDS = {
    "o": [Outcome.PASSED],
    "x": [Outcome.FAILED],
    "f": [Outcome.FAILED, Outcome.PASSED],
    "?": [Outcome.NOT_READY],
    "l": [Outcome.LOST],
    "c": [Outcome.SEGFAULT],
    "r": [Outcome.FAILED],
}


class SimulatedNights:
    """A store that is filled night by night; each cell has one letter per night.

    o passes, x fails, t is toothless, f fails and passes when it is run again, ? has no result, -
    is not run, r fails and the run is stopped before it is run again.
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
        status: RunStatus = RunStatus.FINISHED,
        hours: float = 0.0,
        seconds: float = 2.0,
        problems: tuple[str, ...] = (),
        started: str = "",
    ) -> str:
        name = self._name("prove")
        run = ProveRun(name, "prove", started or self.at(night, hours), settings={"commit": commit})
        ProveTable(self.store).begin(run)
        facts = ReleaseFacts(release, "cpu", {"torch": "2.13.0"}, problems=list(problems))
        ProveTable(self.store).save_release(name, facts)
        for toggle, letter in cells.items():
            cell = CellResult(f"{GUARD}_{toggle}", toggle, release, "cpu", "fixed")
            ProveTable(self.store).save_planned_cells(name, [cell])
            if letter == "-":
                continue
            replay = "./unfix replay-it"
            passed = SideResult("fixed", Outcome.PASSED, seconds, reach=3, replay=replay)
            if letter == "x":
                passed = SideResult(
                    *("fixed", Outcome.FAILED, seconds, 0.0, 3, {}, "assert 3 >= 6"),
                    *(["batch=Batch(lengths=(1,))"], "Traceback:\n  line\nAssertionError: 3 >= 6"),
                    replay=f"./unfix replay {toggle}",
                )
            if letter == "f":
                passed.first = "segfault"
            ProveTable(self.store).save_side(name, cell, passed)
            cell.verdict = SCORES.get(letter, Verdict.PROVEN)
            ProveTable(self.store).save_verdict(name, cell)
        run.status, run.seconds = status, 60.0
        ProveTable(self.store).save(run)
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
        status: RunStatus = RunStatus.FINISHED,
        command: str = "unfix prove --release 0.5.18",
    ) -> str:
        name = self._name("matrix")
        values = {"release": "0.5.18", "device": "h200" if device_seconds else "cpu"}
        run = MatrixRun(name, "nightly", "cpu", "digest", len(cells), {}, self.at(night, hours))
        run.commit, words = commit, command.split()
        run.cells = [
            MatrixCellResult(one, {**values, "kv": one}, "proof", words, "") for one in cells
        ]
        MatrixTable(self.store).begin(run)
        ended = []
        for one, letter in cells.items():
            outcomes = ENDS.get(letter, [])
            for number, outcome in enumerate(outcomes, 1):
                how, last = f"ended {outcome}", number == len(outcomes) and letter != "r"
                ran = (self.at(night, hours), seconds, device_seconds, "node-1", f"log of {one}")
                attempt = CellAttempt(number, outcome, how, *ran, {}, last)
                ended.append((one, attempt))
        MatrixTable(self.store).save_attempts(name, ended)
        run.status, run.seconds = status, 100.0
        MatrixTable(self.store).save(run)
        return name

    def evaluation(
        self, night: int, verdict: Verdict, *, failure: str = "", release: str = "0.5.18"
    ) -> str:
        name = self._name("eval")
        answers = [ItemAnswer("needle", 0, "p", "t", "t", True)]
        make = functools.partial(ServedConfiguration, seconds=5.0, answers=answers)
        served = [make(one, "llama", release, [], "cpu") for one in ("base", "triton")]
        served[1].failure = failure
        words = f"{verdict}: so it is"
        compared = [ComparisonResult("base", "triton", "tokens", "needle", verdict, words)]
        started = datetime.datetime.fromisoformat(self.at(night, 2)).timestamp()
        EvalTable(self.store).save(
            Evaluation(
                *(name, "cpu", "unfix eval cpu", started, 30.0, RunStatus.FINISHED, "cpu"),
                *(0, 10, 0.01, 1, None),
                served=served,
                compared=compared,
                machine={"unfix": "aaa"},
            )
        )
        return name

    def fuzz(
        self,
        night: int,
        failing: tuple[str, ...] = (),
        *,
        examples: int = 500,
        left_out: str = "",
        known: tuple[str, ...] = (),
    ) -> str:
        name = self._name("fuzz")
        test = "suites/kv_indices/test_kv_indices.py::test_padding"
        found = FoundFailure("AssertionError", "", "", "assert 1 == 2", ["n=1"], "AAAA")
        repro = FailureRecord(
            **msgspec.structs.asdict(found),
            format=1,
            test=test,
            release="0.5.18",
            under=[],
            date="",
            versions={},
            seed=1,
            detail="Traceback\nboom",
        )
        run = FuzzRun(
            name, self.at(night, 3), status=RunStatus.FINISHED, seconds=60.0, commit="aaa"
        )
        run.tests = [FuzzTestResult(test, "0.5.18", examples, 30.0, left_out=left_out)]
        run.failures = [RunFailure(one, "", "", repro, known=list(known)) for one in failing]
        FuzzTable(self.store).save(run)
        return name

    def mutate(self, night: int, fates: dict[str, Verdict], problems: tuple[str, ...] = ()) -> str:
        name = self._name("mutate")
        run = MutationRun(name, self.at(night, 4), "0.5.23", RunStatus.FINISHED)
        run.recorded_problems = list(problems)
        MutationTable(self.store).begin(run)
        for number, (fault, fate) in enumerate(fates.items(), 1):
            place = ("sglang.srt.mem_cache.memory_pool", "ReqToTokenPool.alloc", "memory_pool.py")
            change = ("a + 1", "a", "1 is no longer added")
            mutation = MutationFault(fault, "drop-addend", *place, False, 10, 15, 7, 7, 7, *change)
            passed = ["suites/pool_sizing/test_pool_sizing.py::test_rows"]
            result = FaultResult(mutation, fate, passed=passed, diff="-a + 1\n+a")
            MutationTable(self.store).save_result(name, number, result)
        MutationTable(self.store).save(run)
        return name

    def search(self, name: str, guard: str, release: str, verdict: str, summary: str) -> None:
        search = BisectSearch(name, "toggles", self.at(2), [guard], status=RunStatus.FINISHED)
        search.settings, search.verdict, search.summary = {"release": release}, verdict, summary
        BisectTable(self.store).begin(search)
        BisectTable(self.store).save(search)

    def history(self, since: str = "30d", now: datetime.datetime = NOW) -> NightHistory:
        return timelines.read_history(self.store, time_window.parse_since(since, now), now)

    def line(self, words: str) -> Timeline:
        """Return the entry whose key contains this text."""
        (found,) = [line for line in self.history().timelines if words in line.item.key]
        return found


def store_letters(nights: SimulatedNights, letters: str, name: str = "a") -> Timeline:
    """Store a cell of a matrix with a letter a night, beside one that passes each night."""
    for night, letter in enumerate(letters):
        nights.matrix(night, {name: letter, "beside": "o"})
    return nights.line(f" {name}")
