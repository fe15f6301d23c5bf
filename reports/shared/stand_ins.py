"""What stand-ins of the virtual GPU computed in a run, in one line of each of its reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harness.core.added_counts import add_counts
from harness.core.device import VIRTUAL
from harness.sanitizer.device.record import describe_stand_ins


def describe_run_stand_ins(device: str, calls: Iterable[Mapping[str, int]]) -> str:
    """Describe the calls of all results; nothing on a device that is here."""
    if device != VIRTUAL:
        return ""
    return describe_stand_ins(add_counts(*calls))
