"""An architecture of the zoo whose fork dies or hangs: its result says so."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from calling import PATIENCE_SECONDS

from harness.core.outcomes import Verdict
from harness.runs.zoo import claims
from harness.runs.zoo.architecture import Architecture
from harness.runs.zoo.request import ZooWorkerRequest
from harness.runs.zoo.zoo_worker import ArchitectureFork
from harness.store.zoo.values import ArchitectureResult, ZooClaim

RunFork = Callable[..., ArchitectureResult]


@pytest.fixture
def run_fork(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RunFork:
    """Return a function that runs one architecture whose claims are the function it gets."""

    def run_one(run: Callable[[], object], seconds: float = 60.0) -> ArchitectureResult:
        monkeypatch.setattr(claims, "ArchitectureRun", lambda *_: SimpleNamespace(run=run))
        architecture = Architecture("llama", name="one")
        request = ZooWorkerRequest("H100", str(tmp_path), 1, seconds, [architecture])
        return ArchitectureFork(request, 0).run()

    return run_one


def get_only_headline(result: ArchitectureResult) -> str:
    (claim,) = result.claims
    assert (result.name, claim.claim) == ("one", ZooClaim.STARTS)
    assert claim.verdict is Verdict.FAILS
    return claim.headline


def test_a_fork_that_dies_has_a_result_that_says_so(
    run_fork: RunFork,
) -> None:
    def die() -> None:
        os.write(1, b"its last words\n")
        os.abort()

    result = run_fork(die)
    assert "SIGABRT" in get_only_headline(result)
    assert "its last words" in result.claims[0].detail


def test_a_fork_that_hangs_is_ended_and_its_result_says_so(
    run_fork: RunFork,
) -> None:
    begun = time.monotonic()
    result = run_fork(lambda: time.sleep(600), seconds=3.0)
    assert time.monotonic() - begun < PATIENCE_SECONDS
    assert "3 s" in get_only_headline(result)
    assert "sleep" in result.claims[0].detail or "lambda" in result.claims[0].detail
