"""What the two checks report: one exception class for each kind, in the form of the others."""

from __future__ import annotations

import linecache

from harness.sanitizer.launches.call_stacks import CallStack
from harness.sanitizer.violations.exceptions import KernelLocation, Violation


class StaleGraphAddress(Violation):
    """A captured launch whose memory was freed, moved or given away before the graph's end."""


class StaleGraphNumber(Violation):
    """A captured launch that keeps a number of the host, which the program has changed since."""


class OverwrittenPoolMemory(Violation):
    """A read of memory in a graph's pool, into which another graph of the pool wrote since."""


class UnorderedAccess(Violation):
    """Accesses of the same bytes by two streams, at least one of them a write, without an order."""


class EarlyReuse(Violation):
    """Freed memory that its stream uses again while another stream may still use it."""


def locate_launch(kernel: str, stack: CallStack) -> KernelLocation | None:
    """Return the line that launched a kernel."""
    if not stack:
        return None
    frame = stack[0]
    text = linecache.getline(frame.file, frame.line).strip()
    return KernelLocation(kernel, frame.short_file, frame.line, text, None)
