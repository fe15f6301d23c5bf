"""What a check may say of a kernel, in the words of whoever has to mend it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KernelLocation:
    """Where in a launch something happened."""

    kernel: str
    file: str
    line: int
    text: str
    program: tuple[int, int, int]

    def __str__(self) -> str:
        return f"{self.file}:{self.line}  {self.text}\n  program {self.program}"


class Violation(AssertionError):
    """A kernel did what it must not do. An assertion, so that a test fails by it."""

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
    """An address outside the tensor that the launch was given."""


class AccessRuleViolation(Violation):
    """An element that the suite said this program may not touch."""


class IntegerOverflow(Violation):
    """An integer left its type on the way into an address."""


class UninitializedMemory(Violation):
    """What should have been written was not, or was read before anyone wrote it."""


class DataRace(Violation):
    """Two programs of one launch wrote different values to one address."""


class KernelAssertion(Violation):
    """An assertion inside the kernel itself."""


class CudaError(Violation):
    """The device itself stopped a kernel: an address that no allocation holds, mostly."""


class DeviceLost(BaseException):
    """After a CUDA error nothing runs in this process. Not an Exception: nobody may go on from it,
    and shrinking an example on a dead device would shrink it to nothing.
    """


class UncheckableKernel(Exception):
    """The checker has no right answer for this kernel: the guard says nothing, and is not green."""
