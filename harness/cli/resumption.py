"""The stopped run that `--resume` continues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from harness.core.errors import UnfixError
from harness.core.outcomes import RunStatus


class ResumableRun(Protocol):
    id: str
    status: RunStatus


ResumableRunT = TypeVar("ResumableRunT", bound=ResumableRun)


def find_stopped_run(runs: Sequence[ResumableRunT], name: str, noun: str) -> ResumableRunT:
    """Find the stopped run of this name, or else the newest one; raise an error without one."""
    matches = [run for run in runs if run.id.startswith(name)]
    if name and len(matches) > 1:
        raise UnfixError(f"there is more than one {noun} {name}")
    run = next((run for run in reversed(matches) if name or run.status is RunStatus.STOPPED), None)
    if run is None:
        last = f": {runs[-1].id} is {runs[-1].status}" if runs and not name else ""
        raise UnfixError(
            f"there is no {noun} {name + ' ' if name else ''}to resume{last}; "
            "`unfix report --list` shows what is stored"
        )
    if run.status is RunStatus.RUNNING:
        raise UnfixError(f"{noun} {run.id} is still running")
    if run.status is not RunStatus.STOPPED:
        raise UnfixError(f"{noun} {run.id} is {run.status}: there is nothing to resume")
    return run


def refuse_if_changed(before: Any, now: Any, run_id: str, subject: str) -> None:
    """Refuse to resume a run if its code has changed."""
    if before != now:
        raise UnfixError(
            f"{subject} have changed since {run_id} was stopped, and its first half is about the "
            "old ones: start a new run"
        )
