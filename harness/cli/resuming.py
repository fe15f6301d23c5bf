"""What `--resume` goes on with: a stored run that was stopped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from harness.errors import UnfixError


class Stored(Protocol):
    id: str
    status: str


Some = TypeVar("Some", bound=Stored)


def stopped(runs: Sequence[Some], name: str, what: str) -> Some:
    """The run of this name, else the newest that was stopped; refused if there is nothing left."""
    found = [run for run in runs if run.id.startswith(name)]
    if name and len(found) > 1:
        raise UnfixError(f"there is more than one {what} {name}")
    run = next((run for run in reversed(found) if name or run.status == "stopped"), None)
    if run is None:
        last = f": {runs[-1].id} is {runs[-1].status}" if runs and not name else ""
        raise UnfixError(
            f"there is no {what} {name + ' ' if name else ''}to go on with{last}; "
            "`unfix report --list` shows what is stored"
        )
    if run.status == "running":
        raise UnfixError(f"{what} {run.id} is still going on")
    if run.status != "stopped":
        raise UnfixError(f"{what} {run.id} is {run.status}: there is nothing to resume")
    return run


def refuse_if_changed(before: Any, now: Any, run: str, what: str) -> None:
    """Half of a run is of what was there before: the other half has to be of the same."""
    if before != now:
        raise UnfixError(
            f"{what} have changed since {run} was stopped, and half of it would be about the old "
            "ones: start anew"
        )
