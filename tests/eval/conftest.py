"""Fake servers, and one lm-eval for all tests that need it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from faked import Fakes, FakeServers, SharedLmEval


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[FakeServers]:
    serving = FakeServers(tmp_path)
    yield serving
    serving.close()


@pytest.fixture(scope="session")
def lm_eval(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedLmEval]:
    """One lm-eval process for all tests, since it takes seconds to start."""
    kept = SharedLmEval(tmp_path_factory.mktemp("lm-eval") / "log")
    yield kept
    kept.close()


@pytest.fixture
def fakes(tmp_path: Path, lm_eval: SharedLmEval) -> Fakes:
    return Fakes(tmp_path, lm_eval)
