"""Kernels under check: every access of a launch is compared with the launch's tensors.

Programs import these names from `harness.checking`.
"""

import torch  # noqa: F401 - alone: hooks behind its import need all modules of this folder

from harness.sanitizer.check.declarations import Check
from harness.sanitizer.check.session import checked, preload_checker, run_kernels_on_cpu
from harness.sanitizer.check.virtual_memory import virtual_zeros
from harness.sanitizer.violations.exceptions import (
    AccessRuleViolation,
    CudaError,
    DataRace,
    DeviceLost,
    IntegerOverflow,
    KernelAssertion,
    OutOfBounds,
    UncheckableKernel,
    UninitializedMemory,
    Violation,
)

__all__ = [
    "AccessRuleViolation",
    "Check",
    "CudaError",
    "DataRace",
    "DeviceLost",
    "IntegerOverflow",
    "KernelAssertion",
    "OutOfBounds",
    "UncheckableKernel",
    "UninitializedMemory",
    "Violation",
    "checked",
    "preload_checker",
    "run_kernels_on_cpu",
    "virtual_zeros",
]
