"""A checked session: what a suite holds while it drives SGLang's code.

with checking.checked() as check:
    launch_something(torch.empty(8, device=check.device))
    check.written(out)
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from harness import device as chosen
from harness.checking.check import Check

_ACTIVE = threading.Lock()


@contextlib.contextmanager
def checked(device: str | None = None) -> Any:
    """A session on this device, or on the one that the run was asked for."""
    where = device or chosen.get()
    check = Check() if where == "cpu" else _compiled()
    if not _ACTIVE.acquire(blocking=False):
        raise RuntimeError("a checked session is open already: they do not nest")
    try:
        with contextlib.ExitStack() as stack:
            check.opened(stack)
            yield check
        if check.launches.refused:  # and the code under test went on as if nothing were
            raise check.launches.refused[0]
    finally:
        _ACTIVE.release()


def _compiled() -> Check:
    from harness.checking.compiled import CompiledCheck

    return CompiledCheck()
