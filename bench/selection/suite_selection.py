"""A pytest plugin for the case `other_suites`: the smallest cases of each function, limits of time.

SUITE_CASES=N takes the N smallest cases of each function (1), SUITE_SAMPLE=N takes N functions of
each file, the same ones at each run. SUITE_WITHOUT names
functions that do not run, SUITE_COUNTS a file for how many there were, SUITE_OUTCOMES one for what
became of each test and its CPU time. A test's limit is of this process's CPU time: others' load
ends none.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

_LIMIT = int(os.environ.get("SUITE_LIMIT", "60"))
_WITHOUT = [name for name in os.environ.get("SUITE_WITHOUT", "").split(",") if name]
_CASES = int(os.environ.get("SUITE_CASES", "1"))
_SAMPLE = int(os.environ.get("SUITE_SAMPLE", "0"))
_seconds: dict[str, float] = {}
_outcomes: dict[str, dict[str, Any]] = {}
_DEADLINE = time.monotonic() + float(os.environ.get("SUITE_BUDGET", "inf"))


class TestTookTooLong(BaseException):
    """A test past its limit; no handler of the test goes on from it."""

    __test__ = False


def _measure_case(item: pytest.Item) -> int:
    """Return the product of a case's numbers."""
    size = 1
    callspec = getattr(item, "callspec", None)
    for value in callspec.params.values() if callspec else ():
        for number in value if isinstance(value, (list, tuple)) else (value,):
            if type(number) is int and number > 1:
                size *= number
    return size


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    cases: dict[str, int] = defaultdict(int)
    smallest: dict[str, dict[str, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        name = item.nodeid.partition("[")[0]
        file = name.partition("::")[0]
        cases[file] += 1
        smallest[file][name].append(item)
    for functions in smallest.values():
        for name, own in functions.items():
            functions[name] = sorted(own, key=_measure_case)[:_CASES]
    chosen = {file: _choose_items(file, functions) for file, functions in smallest.items()}
    items[:] = [item for own in chosen.values() for item in own]
    counts: dict[str, dict[str, Any]] = {
        file: {"cases": cases[file], "functions": len(smallest[file]), "run": len(functions)}
        for file, functions in chosen.items()
    }
    for file, functions in smallest.items():
        if kept_out := [name for name in functions if name.endswith(tuple(_WITHOUT))]:
            counts[file]["kept_out"] = kept_out
    if place := os.environ.get("SUITE_COUNTS"):
        Path(place).write_text(json.dumps(counts))


def _choose_items(file: str, functions: dict[str, list[pytest.Item]]) -> list[pytest.Item]:
    names = [name for name in functions if not name.endswith(tuple(_WITHOUT))]
    if _SAMPLE and len(names) > _SAMPLE:
        chosen = set(random.Random(file).sample(names, _SAMPLE))
        names = [name for name in names if name in chosen]
    return [item for name in names for item in functions[name]]


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the run behind the file whose tests took it past its budget."""
    is_last_of_file = nextitem is None or nextitem.path != item.path
    if is_last_of_file and time.monotonic() > _DEADLINE:
        item.session.shouldstop = "the budget of time is used up"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    def stop(*_: object) -> None:
        raise TestTookTooLong(f"{_LIMIT} s of CPU time")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, _LIMIT)
    began = time.process_time()
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        _seconds[item.nodeid] = round(time.process_time() - began, 3)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        seconds = _seconds.get(report.nodeid, 0)
        _outcomes[report.nodeid] = {"outcome": report.outcome, "seconds": seconds}


def pytest_sessionfinish() -> None:
    if place := os.environ.get("SUITE_OUTCOMES"):
        Path(place).write_text(json.dumps(_outcomes))
