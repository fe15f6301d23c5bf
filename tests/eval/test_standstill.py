"""A hang is repeated until its ranks stand still where they stood, and not until its limits."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import replace

import pytest
from faked import Fakes, make_fake

from harness.runs.eval import job_session
from harness.runs.eval.evaluation_servers import EvaluationServers
from harness.runs.eval.runner import request_nothing
from harness.runs.eval.serving_job import ServingJob
from harness.store.eval.values import ServedConfiguration
from harness.workers.servers import rank_standstill
from harness.workers.servers.rank_standstill import (
    RankActivity,
    StandstillWatch,
    ThreadActivity,
    stand_still,
)
from harness.workers.servers.server import SglangServer

Patch = pytest.MonkeyPatch

MAIN, POLLING, COMPILING = 1, 2, 3
ASLEEP = ThreadActivity("S", 140, 264)


def make_rank(**threads: ThreadActivity) -> dict[int, RankActivity]:
    numbers = {"main": MAIN, "polling": POLLING, "compiling": COMPILING}
    return {MAIN: RankActivity(MAIN, {numbers[name]: one for name, one in threads.items()})}


@pytest.mark.parametrize(
    ("before", "after", "stands"),
    [
        ({"main": ASLEEP}, {"main": ASLEEP}, True),
        ({"main": ASLEEP}, {"main": ThreadActivity("S", 141, 264)}, False),
        ({"main": ASLEEP}, {"main": ThreadActivity("S", 140, 265)}, False),
        # a processor that others hold: it wants to run, and cannot
        ({"main": ThreadActivity("R", 140, 264)}, {"main": ThreadActivity("R", 140, 264)}, False),
        ({"main": ThreadActivity("D", 140, 264)}, {"main": ThreadActivity("D", 140, 264)}, False),
        # a thread of gloo that polls
        ({"main": ASLEEP, "polling": ThreadActivity("S", 9702, 278)},
         {"main": ASLEEP, "polling": ThreadActivity("R", 9756, 279)}, True),
        # a thread of gloo that has a message to send, and gets no processor
        ({"main": ASLEEP, "polling": ThreadActivity("S", 9702, 278)},
         {"main": ASLEEP, "polling": ThreadActivity("R", 9702, 278)}, False),
        # a helper that swaps Python's lock, or talks through pipes, sleeps and works
        ({"main": ASLEEP, "polling": ThreadActivity("S", 10, 3, ticks=50)},
         {"main": ASLEEP, "polling": ThreadActivity("S", 60, 4, ticks=60)}, False),
        ({"main": ASLEEP, "polling": ThreadActivity("S", 10, 3, ticks=50)},
         {"main": ASLEEP, "polling": ThreadActivity("S", 60, 4, ticks=51)}, True),
        # a compiler that the rank has started, or that reads its disk
        ({"main": ASLEEP}, {"main": ASLEEP, "compiling": ThreadActivity("R", 3, 9)}, False),
        ({"main": ASLEEP, "compiling": ThreadActivity("D", 3, 9)},
         {"main": ASLEEP, "compiling": ThreadActivity("D", 3, 9)}, False),
    ],
)  # fmt: skip
def test_a_rank_stands_still_if_neither_it_nor_its_helpers_want_to_work(
    before: dict[str, ThreadActivity], after: dict[str, ThreadActivity], stands: bool
) -> None:
    assert stand_still(make_rank(**before), make_rank(**after)) is stands


def test_a_server_with_one_working_rank_does_not_stand_still() -> None:
    still, works = make_rank(main=ASLEEP), make_rank(main=ThreadActivity("R", 1, 1))
    other = {7: RankActivity(7, {7: ThreadActivity("R", 1, 1)})}
    assert stand_still(still, still)
    assert not stand_still({**still, **other}, {**still, **other})
    assert not stand_still(still, works)


def test_without_a_known_rank_nothing_stands_still() -> None:
    still = make_rank(main=ASLEEP)
    assert not stand_still({}, {})
    assert not stand_still({}, still)


def test_the_time_on_a_processor_is_read() -> None:
    before = rank_standstill._read_threads([os.getpid()])[threading.get_native_id()]
    ends = time.thread_time() + 0.1
    while time.thread_time() < ends:
        pass
    after = rank_standstill._read_threads([os.getpid()])[threading.get_native_id()]
    assert after.ticks > before.ticks + rank_standstill.MAX_POLLING_TICKS


class HangingServers:
    """Serves a planted fault whose ranks hang at one place after another."""

    def __init__(self, fakes: Fakes) -> None:
        self.fakes = fakes
        self.asked = fakes.root / "asked"

    def serve(self, *places: str) -> ServedConfiguration:
        (self.fakes.root / "places").write_text(" ".join(places))
        one = make_fake("one", ranks=str(self.fakes.root), record=str(self.asked))
        # The first server has this limit, in which its ranks reach the place where they hang; a
        # repetition that waits for its own takes a minute.
        job = ServingJob("one", one, {"unfix_recall": [0, 1]}, 2, 2, "", request_timeout=1.5)
        job.is_planted, job.server_arguments = True, one.server_arguments
        servers = EvaluationServers(replace(self.fakes.where(), request_timeout=60.0), 0)
        servers._idle_scorers.put(self.fakes.shared.scorer)
        try:
            return servers.serve_job(job, request_nothing)
        finally:
            servers.close()

    def count_probes(self) -> int:
        return sum(
            json.loads(line)["prompt"] == "a" for line in self.asked.read_text().splitlines()
        )


@pytest.fixture
def hanging(fakes: Fakes, monkeypatch: Patch) -> HangingServers:
    monkeypatch.setattr(rank_standstill, "MIN_STILL_SECONDS", 0.5)
    return HangingServers(fakes)


def test_a_hang_is_repeated_without_waiting_for_its_limits(
    hanging: HangingServers, monkeypatch: Patch
) -> None:
    watched: list[bool] = []

    def watch(server: SglangServer, *, enabled: bool) -> StandstillWatch:
        watched.append(enabled)
        return StandstillWatch(server, enabled=enabled)

    monkeypatch.setattr(job_session, "StandstillWatch", watch)
    served = hanging.serve(*["first"] * 4)
    assert served.failure.startswith("hang: rank TP0 is ")
    assert served.failure.count("scheduler.py:5, first_place") == 2
    assert [run.failure for run in served.repeated] == [served.failure] * 3
    assert hanging.count_probes() == 1  # by the first server alone, whose limits were awaited
    assert watched == [False, True, True, True]


def test_ranks_that_stand_elsewhere_are_no_repetition(hanging: HangingServers) -> None:
    served = hanging.serve("first", "second")
    assert "first_place" in served.failure
    [again] = served.repeated  # by a third server, with all of its time: it answers
    assert again.failure == ""
    assert [answer.right for answer in again.answers] == [True, True]
    kept = {folder.name for folder in (hanging.fakes.root / "servers").iterdir()}
    assert kept == {"one", "one, again 1", "one, again 1, whole"}


def test_a_standstill_after_the_last_answer_is_no_hang(
    hanging: HangingServers, monkeypatch: Patch
) -> None:
    class LateWatch(StandstillWatch):
        """Finds the known standstill, just as all has been answered."""

        def __init__(self, server: SglangServer, *, enabled: bool = True) -> None:
            super().__init__(server, enabled=False)
            self.is_late = enabled

        def __exit__(self, *_: object) -> None:
            if self.is_late:
                self.hang = self._server.describe_hang()
                self._server.stop()

    monkeypatch.setattr(job_session, "StandstillWatch", LateWatch)
    monkeypatch.setattr(SglangServer, "describe_hang", lambda _: "hang: there")
    served = hanging.serve("first")
    [again] = served.repeated
    assert (served.failure, again.failure) == ("hang: there", "")
    assert [answer.right for answer in again.answers] == [True, True]
