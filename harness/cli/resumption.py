"""What `--resume` goes on with: a stored run that was stopped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from harness.core.errors import UnfixError


class ResumableRun(Protocol):
    id: str
    status: str


ResumableRunT = TypeVar("ResumableRunT", bound=ResumableRun)


def find_stopped_run(runs: Sequence[ResumableRunT], name: str, noun: str) -> ResumableRunT:
    """The run of this name, else the newest that was stopped; refused if there is nothing left."""
    found = [run for run in runs if run.id.startswith(name)]
    if name and len(found) > 1:
        raise UnfixError(f"there is more than one {noun} {name}")
    run = next((run for run in reversed(found) if name or run.status == "stopped"), None)
    if run is None:
        last = f": {runs[-1].id} is {runs[-1].status}" if runs and not name else ""
        raise UnfixError(
            f"there is no {noun} {name + ' ' if name else ''}to go on with{last}; "
            "`unfix report --list` shows what is stored"
        )
    if run.status == "running":
        raise UnfixError(f"{noun} {run.id} is still going on")
    if run.status != "stopped":
        raise UnfixError(f"{noun} {run.id} is {run.status}: there is nothing to resume")
    return run


def refuse_if_changed(before: Any, now: Any, run_id: str, subject: str) -> None:
    """Half of a run is of what was there before: the other half has to be of the same."""
    if before != now:
        raise UnfixError(
            f"{subject} have changed since {run_id} was stopped, and half of it would be about the old "
            "ones: start anew"
        )
