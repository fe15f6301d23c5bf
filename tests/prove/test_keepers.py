"""A keeper answers what it is told, one thing after another, and is followed by another one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any
from unittest import mock

import msgspec
import pytest

from harness.core.pipes import PipeEnd
from harness.store.prove.values import SideOutcome, SideResult
from harness.workers.pytest_session import WorkerSession


class Wanted(msgspec.Struct):
    number: int
    long: int = 0  # how much of an answer


class Answer(msgspec.Struct):
    number: int
    keeper: int
    headline: str = ""
    filling: str = ""


class Echo(WorkerSession[Any]):
    """Whose keepers run nothing; what the run would be told is kept."""

    request_type = Wanted

    def __init__(self) -> None:
        self.pipe = PipeEnd(*os.pipe())
        self.told: list[Answer] = []
        self._supervisors = []
        self.items = []

    def run_request(self, request: Wanted) -> SideResult:
        if request.number < 0:
            raise RuntimeError("the toggle could not be taken out again")
        return SideResult("", SideOutcome.PASSED)

    def make_reply(self, request: Wanted, side: SideResult) -> Answer:
        keeper = 0 if side.outcome is SideOutcome.LOST else os.getpid()
        return Answer(request.number, keeper, side.headline, "." * request.long)

    def hear(self) -> Answer:
        """Until the one that was given something has answered, or is gone."""
        before = len(self.told)
        [keeper] = [each for each in self._supervisors if each.pending_request is not None]
        with mock.patch.object(self.pipe, "send", self._note):
            while len(self.told) == before:
                self._receive_from_supervisor(keeper)
        return self.told[-1]

    def living(self) -> int:
        """The keeper that has answered; a signal to 0 would end all that runs beside this test."""
        keeper = self.hear().keeper
        assert keeper
        return keeper

    def _note(self, text: bytes) -> None:
        self.told.append(msgspec.json.decode(text, type=Answer))


@pytest.fixture
def session() -> Iterator[Echo]:
    echo = Echo()
    yield echo
    echo.renew_supervisors()
    echo.pipe.close()


def test_one_keeper_answers_many(session: Echo) -> None:
    heard = []
    for number in range(3):
        session.dispatch_request(Wanted(number, long=200_000))  # more than a pipe holds
        heard.append(session.hear())
    assert [answer.number for answer in heard] == [0, 1, 2]
    [keeper] = {answer.keeper for answer in heard}
    assert keeper not in (0, os.getpid())


def test_one_that_ended_with_nothing_to_do_costs_nothing(session: Echo) -> None:
    session.dispatch_request(Wanted(0))
    ended = session.living()
    os.kill(ended, signal.SIGKILL)
    os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)
    session.dispatch_request(Wanted(1))
    answer = session.hear()
    assert (answer.number, answer.headline) == (1, "")
    assert answer.keeper != ended


def test_one_that_is_renewed_answers_first(session: Echo) -> None:
    session.dispatch_request(Wanted(0, long=200_000))
    session.renew_supervisors()
    assert session.hear().number == 0
    session.dispatch_request(Wanted(1))
    assert session.told[0].keeper != session.hear().keeper


def test_one_that_fails_says_why_and_ends(session: Echo) -> None:
    session.dispatch_request(Wanted(-1))
    answer = session.hear()
    assert (answer.number, answer.keeper) == (-1, 0)
    assert "RuntimeError: the toggle could not be taken out again" in answer.headline
    session.dispatch_request(Wanted(1))
    assert session.hear().keeper != 0
    assert [said.number for said in session.told] == [-1, 1]  # each is answered once
