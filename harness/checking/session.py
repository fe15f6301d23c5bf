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
from harness.checking.launches import Launches
from harness.checking.memory import Memory

_ACTIVE = threading.Lock()


@contextlib.contextmanager
def checked(device: str | None = None, exact: bool = False, all_checks: bool = False) -> Any:
    """A session on this device, or on the one that the run was asked for.

    `exact`: on a CPU, products of float32 are exact where a GPU would take tf32. Else they are
    refused, since nothing says what they come to. `all_checks`: on a GPU, races and reads of what
    nobody wrote as well, which take longer to compile; a CPU has them always.
    """
    where = device or chosen.get()
    check = Check(exact) if where == "cpu" else _compiled(all_checks)
    if not _ACTIVE.acquire(blocking=False):
        raise RuntimeError("a checked session is open already: they do not nest")
    try:
        with contextlib.ExitStack() as stack:
            check.opened(stack)
            yield check
        if check.launches.refused:  # and the code under test went on as if nothing were
            raise check.launches.refused[0]
    finally:
        check.closed()
        _ACTIVE.release()


def make_ready() -> None:
    """What a session on this device needs to be loaded, so that forks find it there."""
    if chosen.get() == "cpu":
        from harness.checking import launching, modes

        launching.make_ready()
        modes.make_ready()


@contextlib.contextmanager
def unwatched() -> Any:
    """Triton's kernels run on this CPU, their accesses held against their tensors.

    Nothing of torch is watched, and products of float32 are exact: for code that is to be run
    rather than checked, on a machine where nothing else runs its kernels.
    """
    from harness.checking.launching import Session

    with Session(Memory(), Launches(), exact=True, trusting=True):
        yield


def _compiled(all_checks: bool) -> Check:
    from harness.checking.compiled import CompiledCheck
    from harness.compiled import ALL, CHECKS

    return CompiledCheck(ALL if all_checks else CHECKS)
