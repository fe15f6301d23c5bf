"""Runs guards once on an unchanged release, so that their launches are captured."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from harness.core import paths
from harness.runs.mutate.attempt_pool import AttemptPool, PendingAttempt
from harness.runs.mutate.coverage_recorder import TRACED_GUARD_SECONDS
from harness.runs.mutate.line_coverage import GuardCoverage
from harness.runs.mutate.request import MutationPlan
from harness.runs.pr.changed_kernels import DONE_NAME, BaseKernelLines
from harness.sanitizer.triton.capture_folder import CAPTURE_VARIABLE

MAX_GUARDS_OF_KERNEL = 4


def choose_launching_guards(
    kernels: Mapping[str, BaseKernelLines], coverages: list[GuardCoverage]
) -> list[str]:
    """Choose a few guards for each kernel, those that run most of its lines, the fastest first."""
    chosen: dict[str, None] = {}
    for lines in kernels.values():
        reaching = [
            (-len(lines.numbers.intersection(one.lines.get(lines.module, ()))), one.seconds, one)
            for one in coverages
        ]
        best = sorted((each for each in reaching if each[0]), key=lambda each: each[:2])
        chosen |= {one.guard: None for _, _, one in best[:MAX_GUARDS_OF_KERNEL]}
    return list(chosen)


def capture_launches(
    plan: MutationPlan, guards: list[str], folder: Path, report_problem: Callable[[str], None]
) -> None:
    """Run guards, and let the processes under them write their launches to the folder."""
    run_folder = paths.state_folder() / "runs" / f"capture-{secrets.token_hex(4)}"
    pool = AttemptPool(plan, run_folder, report_problem)
    os.environ[CAPTURE_VARIABLE] = str(folder)
    try:
        pool.start()
        pool.run_attempts(
            PendingAttempt([(guard, TRACED_GUARD_SECONDS)], lambda report, names: None)
            for guard in guards
        )
    finally:
        del os.environ[CAPTURE_VARIABLE]
        pool.end_workers()
        shutil.rmtree(run_folder, ignore_errors=True)
    (folder / DONE_NAME).touch()
