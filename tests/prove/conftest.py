"""`unfix prove` in a folder of its own, for one test or for all tests of a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from proving import Prove


@pytest.fixture
def prove(tmp_path: Path) -> Prove:
    return Prove(tmp_path)


@pytest.fixture(scope="module")
def make_prove(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Prove]:
    return lambda: Prove(tmp_path_factory.mktemp("prove"))
