"""A workspace to search in."""

from __future__ import annotations

from pathlib import Path

import pytest
from bisecting import Bisect


@pytest.fixture
def bisect(tmp_path: Path) -> Bisect:
    return Bisect(tmp_path)
