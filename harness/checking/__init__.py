"""Kernels under check: every access of a launch held against the tensors the launch was given."""

from harness.checking.check import Check
from harness.checking.session import checked, make_ready, unwatched
from harness.checking.violations import (
    CannotFollow,
    CudaError,
    FenceCrossed,
    KernelAssertion,
    LostDevice,
    OutOfBounds,
    Race,
    Unwritten,
    Violation,
    Wrapped,
)
from harness.checking.virtual import virtual

__all__ = [
    "CannotFollow",
    "Check",
    "CudaError",
    "FenceCrossed",
    "KernelAssertion",
    "LostDevice",
    "OutOfBounds",
    "Race",
    "Unwritten",
    "Violation",
    "Wrapped",
    "checked",
    "make_ready",
    "unwatched",
    "virtual",
]
