"""`unfix fuzz` in a folder of its own, for one test or for all tests of a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from nights import Nights


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    return Nights(tmp_path)


@pytest.fixture(scope="module")
def make_nights(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Nights]:
    return lambda: Nights(tmp_path_factory.mktemp("fuzz"))
