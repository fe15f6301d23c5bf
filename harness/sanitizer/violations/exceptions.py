"""The violations that a check reports: one exception class for each kind."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KernelLocation:
    """A source line of a kernel, and the program that ran it: for CUDA, a block and a thread."""

    kernel: str
    file: str
    line: int
    text: str
    program: tuple[int, int, int] | None  # None: the line launched the kernel
    thread: tuple[int, int, int] | None = None
    inlined: tuple[str, ...] = ()  # the lines of the callers, innermost first

    def __str__(self) -> str:
        lines = [f"{self.file}:{self.line}  {self.text}"]
        lines += [f"  inlined at {place}" for place in self.inlined]
        if self.thread is not None:
            lines.append(f"block {self.program}, thread {self.thread}")
        elif self.program is not None:
            lines.append(f"program {self.program}")
        return "\n  ".join(lines)


class Violation(AssertionError):
    """A violation by a kernel. It is an AssertionError, so that the test fails."""

    def __init__(
        self, headline: str, location: KernelLocation | None = None, details: tuple[str, ...] = ()
    ):
        lines = [headline]
        if location is not None:
            lines.append(str(location))
        super().__init__("\n  ".join([*lines, *details]))
        self.headline = headline
        self.location = location
        self.details = details
        self.is_warning = False  # it cannot happen on a card as the program is set up

    @property
    def key(self) -> tuple[object, ...]:
        """Return what two reports of one fault have in common: the kind, and the source line."""
        place = self.location
        line = (place.kernel, place.file, place.line) if place else (self.headline,)
        return (type(self), *line)


class OutOfBounds(Violation):
    """An access outside the tensor that its pointer comes from."""


class AccessRuleViolation(Violation):
    """An access to an element that the suite's access rules exclude for this program."""


class IntegerOverflow(Violation):
    """An address computed from an integer that its type does not hold."""


class UninitializedMemory(Violation):
    """An element that was read before it was written, or that had to be written and was not."""


class DataRace(Violation):
    """Accesses of one element by two programs or lanes, whose order decides the result."""


class MisalignedAccess(Violation):
    """An access of several bytes at an address that is no multiple of their number."""


class BarrierDivergence(Violation):
    """Threads of a block that wait for each other at different barriers, or in vain."""


class LaunchRefused(Violation):
    """A launch that CUDA refuses: its grid, its block or its shared memory is too large."""


class KernelAssertion(Violation):
    """A failed assertion of the kernel itself (`tl.device_assert`)."""


class CudaError(Violation):
    """A kernel that the device stopped, mostly for an address outside of all allocations."""


# Of launches, found by the host


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


# Of several ranks, found by the host that answers their collectives


class CollectiveMismatch(Violation):
    """Ranks that call different collectives, or one collective with other tensors or groups."""


class LostRank(Violation):
    """A collective that waits for a rank that has ended, or that does not come."""


# What ends a check


class DeviceLost(BaseException):
    """A device that runs nothing more in this process, after a CUDA error.

    It is not an Exception, so that no handler goes on from it: on a dead device every example
    fails, and would be shrunk to nothing.
    """


class UncheckableKernel(Exception):
    """A kernel that the checker cannot compute exactly: its test has no result."""
