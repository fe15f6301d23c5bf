"""An architecture of the zoo whose fork dies or hangs: its result says so."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

from calling import PATIENCE_SECONDS

from harness.runs.zoo.architecture import Architecture
from harness.runs.zoo.request import ZooWorkerRequest
from harness.runs.zoo.zoo_worker import ArchitectureFork
from harness.store.zoo.values import ArchitectureResult, ClaimVerdict, ZooClaim


def run_fork(folder: Path, run: Callable[[], object], seconds: float = 60.0) -> ArchitectureResult:
    """Run one architecture whose claims are `run`."""

    def make_run(*_: object) -> SimpleNamespace:
        return SimpleNamespace(run=run)

    claims = SimpleNamespace(ArchitectureRun=make_run, GraphCaptureFailed=LookupError)
    architecture = Architecture("llama", name="one")
    request = ZooWorkerRequest("H100", str(folder), 1, seconds, [architecture])
    return ArchitectureFork(claims, request, 0).run()


def get_only_headline(result: ArchitectureResult) -> str:
    (claim,) = result.claims
    assert (result.name, claim.claim) == ("one", ZooClaim.STARTS)
    assert claim.verdict is ClaimVerdict.FAILS
    return claim.headline


def test_a_fork_that_dies_has_a_result_that_says_so(tmp_path: Path) -> None:
    def die() -> None:
        os.write(1, b"its last words\n")
        os.abort()

    result = run_fork(tmp_path, die)
    assert "SIGABRT" in get_only_headline(result)
    assert "its last words" in result.claims[0].detail


def test_a_fork_that_hangs_is_ended_and_its_result_says_so(tmp_path: Path) -> None:
    begun = time.monotonic()
    result = run_fork(tmp_path, lambda: time.sleep(600), seconds=3.0)
    assert time.monotonic() - begun < PATIENCE_SECONDS
    assert "3 s" in get_only_headline(result)
    assert "sleep" in result.claims[0].detail or "lambda" in result.claims[0].detail
