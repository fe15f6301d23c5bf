"""A pytest plugin that writes the counts of outcomes and the skipped tests to a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

# In the order of pytest's own last line.
OUTCOMES = ("failed", "passed", "skipped", "xfailed", "xpassed", "warnings", "error")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--counts", type=Path, metavar="FILE", help="write the counts of outcomes")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    file: Path | None = config.getoption("counts")
    if file is None:
        return
    stats = terminalreporter.stats
    skipped = [[report.nodeid, report.longrepr[2]] for report in stats.get("skipped", ())]
    counts = {outcome: len(stats.get(outcome, ())) for outcome in OUTCOMES}
    file.write_text(json.dumps({"counts": counts, "skipped": skipped}))
