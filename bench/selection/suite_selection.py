"""A pytest plugin for `other_suites.py`: the smallest case of each function, limits of time."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

_LIMIT = int(os.environ.get("SUITE_LIMIT", "60"))
_DEADLINE = time.monotonic() + float(os.environ.get("SUITE_BUDGET", "inf"))


class TestTookTooLong(BaseException):
    """A test past its limit; no handler of the test goes on from it."""

    __test__ = False


def _measure(item: pytest.Item) -> int:
    """Return the product of a case's numbers."""
    size = 1
    callspec = getattr(item, "callspec", None)
    for value in callspec.params.values() if callspec else ():
        for number in value if isinstance(value, (list, tuple)) else (value,):
            if type(number) is int and number > 1:
                size *= number
    return size


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    smallest: dict[str, pytest.Item] = {}
    for item in items:
        name = item.nodeid.partition("[")[0]
        if name not in smallest or _measure(item) < _measure(smallest[name]):
            smallest[name] = item
    items[:] = list(smallest.values())


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the run behind the file whose tests took it past its budget."""
    is_last_of_file = nextitem is None or nextitem.path != item.path
    if is_last_of_file and time.monotonic() > _DEADLINE:
        item.session.shouldstop = "the budget of time is used up"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    def stop(*_: object) -> None:
        raise TestTookTooLong(f"{_LIMIT} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(_LIMIT)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
