"""A pytest plugin: each test's outcome, seconds and error, as JSON in the file OUTCOMES names."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

_found: dict[str, Any] = {}


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        _found[report.nodeid] = {
            "outcome": report.outcome,
            "seconds": round(report.duration, 3),
            "error": _find_error(report) if report.failed else "",
        }


def _find_error(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = report.longreprtext if crash is None else crash.message
    return next((line for line in text.splitlines() if line.strip()), "")[:200]


def pytest_sessionfinish() -> None:
    Path(os.environ["OUTCOMES"]).write_text(json.dumps(_found))
