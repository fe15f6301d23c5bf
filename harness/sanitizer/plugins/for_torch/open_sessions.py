"""The checked sessions that are open, in which launches are checked once an extension is loaded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from harness.sanitizer.hooks import HOOKS

_open_sessions: list[tuple[Any, contextlib.ExitStack]] = []


@contextlib.contextmanager
def check_launches(check: Any) -> Iterator[None]:
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
