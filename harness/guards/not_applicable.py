"""Saying that a guard cannot apply: counted and named in the summary, never a silent skip."""

from __future__ import annotations

from typing import NoReturn

import pytest

NOT_APPLICABLE_PREFIX = "n/a: "


def skip_not_applicable(reason: str) -> NoReturn:
    """This release or machine has nothing that the guard could look at."""
    pytest.skip(NOT_APPLICABLE_PREFIX + reason)
