"""Kernels under check, as suites use it: `with checking.checked() as check:`.

The names are those of `harness.sanitizer.check`; their docstrings say what each does.
"""

import contextlib
from collections.abc import Iterator

from harness.sanitizer.check import *  # noqa: F403
from harness.sanitizer.check import Check
from harness.sanitizer.check import __all__ as _names

__all__ = [*_names, "checked_cuda"]


@contextlib.contextmanager
def checked_cuda(exact: bool = False) -> Iterator[Check]:
    """Open a session on the virtual GPU that runs and checks SGLang's CUDA C++ kernels, too."""
    # Imported late: a compiler and the virtual GPU.
    from harness.releases import cuda_toolkit  # noqa: F401 - it builds the kernels
    from harness.sanitizer.cuda import session

    with session.check_cuda_kernels(exact) as check:
        yield check
