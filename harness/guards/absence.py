"""Saying that a guard cannot apply: counted and named in the summary, never a silent skip."""

from __future__ import annotations

from typing import NoReturn

import pytest

PREFIX = "n/a: "


def not_here(reason: str) -> NoReturn:
    """This release or machine has nothing that the guard could look at."""
    pytest.skip(PREFIX + reason)
