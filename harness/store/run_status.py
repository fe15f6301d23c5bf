"""The status of a run as a reason why it is not green."""

from __future__ import annotations


def list_status_problems(status: str) -> list[str]:
    """Return why a run with this status is not whole, or nothing for a finished one."""
    if status == "finished":
        return []
    return [f"the run {'is still going on' if status == 'running' else 'was stopped'}"]
