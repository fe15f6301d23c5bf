"""Kernels under check, as suites use it: `with checking.checked() as check:`.

The names are those of `harness.kernels.check`; their docstrings say what each does.
"""

from harness.kernels.check import *  # noqa: F403
from harness.kernels.check import __all__ as __all__
