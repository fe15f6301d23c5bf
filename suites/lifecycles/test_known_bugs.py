"""The shortest program of each known bug of the scheduler and its caches.

Strict: a release that fixes one fails here.
"""

from __future__ import annotations

import pytest

from fixtures.lifecycles import setups
from fixtures.lifecycles.program_run import Program, SchedulerDied, WrongAnswer
from fixtures.lifecycles.programs import Abort, Operation, Step, Submit, Turn
from fixtures.lifecycles.setups import Setup
from fixtures.serving.tagged_model import StaleRow

TREES, STREAMING = Setup(sessions="trees"), Setup(sessions="streaming")

pytestmark = [
    pytest.mark.before_forks(ready=setups.import_scheduler),
    pytest.mark.runs_on("virtual"),
]


@pytest.mark.xfail(strict=True, raises=WrongAnswer, reason="ids are compared by their beginning")
def test_an_abort_ends_no_request_of_a_longer_id() -> None:
    submits = (Submit(count=8), Submit(base=1, count=8, extends=True))
    Program(Setup(), (*submits, Step(), Abort())).run()


@pytest.mark.xfail(strict=True, raises=SchedulerDied, reason="a dict changes under its loop")
def test_a_restart_of_a_session_ends_no_server() -> None:
    Program(TREES, (Turn(), Turn(is_restart=True, waits=False))).run()


@pytest.mark.xfail(strict=True, raises=SchedulerDied, reason="a refused turn names its session")
@pytest.mark.parametrize(
    "operations",
    [
        (Turn(), Turn(waits=False)),
        (Turn(count=6), Step(2), Turn(waits=False), Step(2), Turn(waits=False)),
    ],
    ids=["of a new session", "before a third"],
)
def test_a_refused_turn_ends_no_server(operations: tuple[Operation, ...]) -> None:
    setups.skip_without_drafts_and_sessions()
    Program(STREAMING, operations).run()


@pytest.mark.xfail(strict=True, raises=WrongAnswer, reason="the history has all of output_ids")
def test_a_turn_reads_nothing_behind_the_stop_of_the_one_before() -> None:
    setups.skip_without_drafts_and_sessions()
    setup = Setup(chunk=128, drafts=1, sessions="trees")
    Program(setup, (Turn(count=8, stop=1), Step(9), Turn())).run()


@pytest.mark.xfail(strict=True, raises=StaleRow, reason="the last token's row counts as written")
def test_a_turn_reads_no_row_that_no_token_wrote() -> None:
    setups.skip_without_drafts_and_sessions()
    setup = Setup(chunk=128, drafts=1, sessions="streaming")
    Program(setup, (Turn(count=4), Step(9), Turn(count=2))).run()


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="an abort returns before the cut")
def test_no_aborted_answer_exceeds_its_limit() -> None:
    setups.skip_without_drafts_and_sessions()
    aborted, _ = Program(Setup(chunk=128, drafts=1), (Submit(count=3), Step(2), Abort())).run()
    assert len(aborted.tokens) <= 3
