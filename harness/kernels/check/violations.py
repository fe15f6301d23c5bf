"""What a check reports of a kernel: one exception class for each kind of violation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KernelLocation:
    """A source line of a kernel, and the program that ran it."""

    kernel: str
    file: str
    line: int
    text: str
    program: tuple[int, int, int]

    def __str__(self) -> str:
        return f"{self.file}:{self.line}  {self.text}\n  program {self.program}"


class Violation(AssertionError):
    """A kernel did something it must not do. An AssertionError, so that a test fails by it."""

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


class OutOfBounds(Violation):
    """An access outside the tensor that its pointer comes from."""


class AccessRuleViolation(Violation):
    """An access to an element that the suite's access rules exclude for this program."""


class IntegerOverflow(Violation):
    """An integer result that its type does not hold took part in an address."""


class UninitializedMemory(Violation):
    """An element was read before it was written, or should have been written and was not."""


class DataRace(Violation):
    """Two programs or lanes of a launch access one element, and their order decides the result."""


class KernelAssertion(Violation):
    """An assertion of the kernel itself (`tl.device_assert`) fails."""


class CudaError(Violation):
    """The device stopped a kernel, mostly for an address that no allocation holds."""


class DeviceLost(BaseException):
    """After a CUDA error the device runs nothing more in this process.

    Not an Exception, so that no handler goes on from it: shrinking an example on a dead device
    would shrink it to nothing.
    """


class UncheckableKernel(Exception):
    """The checker cannot compute this kernel exactly: the guard has no result, and is not green."""
