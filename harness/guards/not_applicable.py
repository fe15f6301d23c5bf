"""Guards that do not apply here: counted and named in the summary, never skipped in silence."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest

NOT_APPLICABLE_PREFIX = "n/a: "


def skip_not_applicable(reason: str) -> NoReturn:
    """End a guard whose subject this release or machine does not have."""
    pytest.skip(NOT_APPLICABLE_PREFIX + reason)


def read_skip_reason(report: Any) -> str:
    """The reason of a skipped test, as the test gave it."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")


def parse_not_applicable(reason: str) -> str | None:
    """The reason without its prefix; None if the test skipped itself in any other way."""
    applies = not reason.startswith(NOT_APPLICABLE_PREFIX)
    return None if applies else reason.removeprefix(NOT_APPLICABLE_PREFIX)
