"""A supervisor that ends costs no request: another one takes over."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import pytest

from harness.core.outcomes import Outcome
from harness.core.pipes import PipeEnd
from harness.store.prove.values import SideResult
from harness.workers.pytest_session import WorkerSession


class Request(msgspec.Struct):
    number: int


class Answer(msgspec.Struct):
    number: int
    supervisor: int
    headline: str = ""


class Echo(WorkerSession[Any]):
    """A session whose supervisors run nothing, and whose replies to the run are recorded."""

    request_type = Request

    def __init__(self) -> None:
        self.settings = SimpleNamespace(shares_processes=False)
        self.pipe = PipeEnd(*os.pipe())
        self.replies: list[Answer] = []
        self._supervisors = []
        self._supervisor_count = 0
        self.items = []

    def run_request(self, request: Request) -> SideResult:
        if request.number < 0:
            raise RuntimeError("the toggle could not be reverted")
        return SideResult("", Outcome.PASSED)

    def learn_from_run(self, request: Request) -> None:
        pass

    def make_reply(self, request: Request, side: SideResult) -> Answer:
        supervisor = 0 if side.outcome is Outcome.LOST else os.getpid()
        return Answer(request.number, supervisor, side.headline)

    def hear(self) -> Answer:
        """Return the reply of the busy supervisor, or the one about its end."""
        before = len(self.replies)
        [supervisor] = [each for each in self._supervisors if each.pending_request is not None]
        with mock.patch.object(self.pipe, "send", self._note):
            while len(self.replies) == before:
                self._receive_from_supervisor(supervisor)
        return self.replies[-1]

    def hear_pid(self) -> int:
        """Return the next reply's supervisor, never 0: a signal to 0 would end this test too."""
        supervisor = self.hear().supervisor
        assert supervisor
        return supervisor

    def _note(self, text: bytes) -> None:
        self.replies.append(msgspec.json.decode(text, type=Answer))


@pytest.fixture
def session() -> Iterator[Echo]:
    echo = Echo()
    yield echo
    echo.renew_supervisors()
    echo.pipe.close()


def test_a_message_to_a_supervisor_that_ended_does_not_end_the_worker(session: Echo) -> None:
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as imported C code leaves it
    try:
        session.pipe.is_peer_closed = True
        session.serve_forks()
        assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGPIPE, before)


def test_an_idle_supervisor_that_ends_costs_no_request(session: Echo) -> None:
    session.dispatch_request(Request(0))
    ended = session.hear_pid()
    os.kill(ended, signal.SIGKILL)
    os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)
    session.dispatch_request(Request(1))
    answer = session.hear()
    assert (answer.number, answer.headline) == (1, "")
    assert answer.supervisor != ended


def test_a_supervisor_that_fails_reports_its_error_and_ends(session: Echo) -> None:
    session.dispatch_request(Request(-1))
    answer = session.hear()
    assert (answer.number, answer.supervisor) == (-1, 0)
    assert "RuntimeError: the toggle could not be reverted" in answer.headline
    session.dispatch_request(Request(1))
    assert session.hear().supervisor != 0
    assert [reply.number for reply in session.replies] == [-1, 1]  # each is answered once
