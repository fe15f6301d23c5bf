"""The shortest program of each known bug of the scheduler and its caches.

Strict: a release that fixes one fails here. `--runxfail` shows what happens.
"""

from __future__ import annotations

import pytest

from fixtures.lifecycles import setups
from fixtures.lifecycles.program_run import Program, WrongAnswer
from fixtures.lifecycles.programs import Abort, Step, Submit
from fixtures.lifecycles.setups import Setup

pytestmark = [
    pytest.mark.before_forks(ready=setups.import_scheduler),
    pytest.mark.runs_on("virtual"),
]


@pytest.fixture(autouse=True)
def _schedulers_run_on_the_virtual_gpu() -> None:
    setups.skip_without_virtual_gpu()
    setups.skip_on_unknown_releases()


@pytest.mark.xfail(strict=True, raises=WrongAnswer, reason="ids are compared by their beginning")
def test_an_abort_ends_no_request_of_a_longer_id() -> None:
    submits = (Submit(count=8), Submit(base=1, count=8, extends=True))
    Program(Setup(), (*submits, Step(), Abort())).run()
