"""Guards that do not apply here: the summary counts and names them."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest

NOT_APPLICABLE_PREFIX = "n/a: "


def skip_not_applicable(reason: str) -> NoReturn:
    """Skip a guard whose subject this release or machine does not have."""
    pytest.skip(NOT_APPLICABLE_PREFIX + reason)


def read_skip_reason(report: Any) -> str:
    """Return the reason that a skipped test gives."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")


def parse_not_applicable(reason: str) -> str | None:
    """Return the reason without its prefix, or None if the test was skipped in any other way."""
    applies = not reason.startswith(NOT_APPLICABLE_PREFIX)
    return None if applies else reason.removeprefix(NOT_APPLICABLE_PREFIX)
