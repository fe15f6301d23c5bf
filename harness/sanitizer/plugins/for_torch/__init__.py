"""torch's own extensions, called directly or as operators, on this CPU.

They are built by `load` and `load_inline` while a program runs, or by a `setup.py` before.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from harness.sanitizer.hooks import HOOKS
from harness.sanitizer.plugins import SanitizerPlugin

_BUILDER, _OPERATORS = "torch.utils.cpp_extension", "torch._ops"
_open_sessions: list[tuple[Any, contextlib.ExitStack]] = []


@functools.cache  # each session of `checked_cuda` calls it
def _build_cuda_kernels() -> None:
    from harness.core.after_import import call_after_import
    from harness.sanitizer.check import virtual_check
    from harness.sanitizer.plugins.for_torch import built_extensions, extensions

    call_after_import({_BUILDER: extensions.hook_builds, _OPERATORS: built_extensions.hook_loads})
    built_extensions.hook_imports()
    virtual_check.SESSION_EXTENSIONS.append(_check_launches)


@contextlib.contextmanager
def _check_launches(check: Any) -> Iterator[None]:
    """Check the launches of a session; a process that never loads an extension pays nothing."""
    with contextlib.ExitStack() as stack:
        _open_sessions.append((check, stack))
        try:
            if HOOKS.sees_cuda_launches:
                check_open_sessions()
            yield
        finally:
            _open_sessions.pop()


def check_open_sessions() -> None:
    """Check launches in the sessions that are open: an extension may be built inside of a test."""
    from harness.sanitizer.cuda import session

    for check, stack in _open_sessions[-1:]:
        stack.enter_context(session.check_launches(check))


PLUGIN = SanitizerPlugin(build_cuda_kernels=_build_cuda_kernels)
