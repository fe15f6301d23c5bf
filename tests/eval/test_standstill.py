"""A hang is repeated until its ranks stand still where they stood, and not until its limits."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from faked import Fakes, fake

from harness.runs.eval.evaluation_servers import EvaluationServers
from harness.runs.eval.runner import request_nothing
from harness.runs.eval.serving_job import ServingJob
from harness.store.eval.values import ServedConfiguration
from harness.workers.servers.rank_standstill import RankActivity, ThreadActivity, stand_still

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
        (
            {"main": ASLEEP, "polling": ThreadActivity("S", 9702, 278)},
            {"main": ASLEEP, "polling": ThreadActivity("R", 9756, 279)},
            True,
        ),
        # a thread of gloo that has a message to send, and gets no processor
        (
            {"main": ASLEEP, "polling": ThreadActivity("S", 9702, 278)},
            {"main": ASLEEP, "polling": ThreadActivity("R", 9702, 278)},
            False,
        ),
        # a compiler that the rank has started, or that reads its disk
        ({"main": ASLEEP}, {"main": ASLEEP, "compiling": ThreadActivity("R", 3, 9)}, False),
        (
            {"main": ASLEEP, "compiling": ThreadActivity("D", 3, 9)},
            {"main": ASLEEP, "compiling": ThreadActivity("D", 3, 9)},
            False,
        ),
    ],
)
def test_a_rank_stands_still_if_neither_it_nor_its_helpers_want_to_work(
    before: dict[str, ThreadActivity], after: dict[str, ThreadActivity], stands: bool
) -> None:
    assert stand_still(make_rank(**before), make_rank(**after)) is stands


def test_one_rank_that_works_is_enough() -> None:
    still, works = make_rank(main=ASLEEP), make_rank(main=ThreadActivity("R", 1, 1))
    other = {7: RankActivity(7, {7: ThreadActivity("R", 1, 1)})}
    assert stand_still(still, still)
    assert not stand_still({**still, **other}, {**still, **other})
    assert not stand_still(still, works)


def test_without_a_known_rank_nothing_stands_still() -> None:
    still = make_rank(main=ASLEEP)
    assert not stand_still({}, {})
    assert not stand_still({}, still)


class HangingServers:
    """Serves a planted fault whose ranks hang at one place after another."""

    def __init__(self, fakes: Fakes) -> None:
        self.fakes = fakes
        self.asked = fakes.root / "asked"

    def serve(self, *places: str) -> ServedConfiguration:
        (self.fakes.root / "places").write_text(" ".join(places))
        one = fake("one", ranks=str(self.fakes.root), record=str(self.asked))
        # The first server has this limit; a repetition that waits for its own takes a minute.
        job = ServingJob("one", one, {"unfix_recall": [0, 1]}, 2, 2, "", request_timeout=0.3)
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
def hanging(fakes: Fakes) -> HangingServers:
    return HangingServers(fakes)


def test_a_hang_is_repeated_without_waiting_for_its_limits(hanging: HangingServers) -> None:
    served = hanging.serve(*["first"] * 4)
    assert served.failure.startswith("hang: rank TP0 is ")
    assert served.failure.count("scheduler.py:5, first_place") == 2
    assert [run.failure for run in served.repeated] == [served.failure] * 3
    assert hanging.count_probes() == 1  # by the first server alone, whose limits were awaited


def test_ranks_that_stand_elsewhere_are_no_repetition(hanging: HangingServers) -> None:
    served = hanging.serve("first", "second")
    assert "first_place" in served.failure
    [again] = served.repeated  # by a third server, with all of its time: it answers
    assert again.failure == ""
    assert [answer.right for answer in again.answers] == [True, True]
