"""A checked session: what a suite holds while it drives SGLang's code.

with checking.checked() as check:
    launch_something(torch.empty(8, device=check.device))
    check.assert_written(out)
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from harness.core import device as chosen
from harness.kernels.check.declarations import Check
from harness.kernels.check.launch_log import LaunchLog
from harness.kernels.check.tracked_memory import MemoryTracker

_SESSION_LOCK = threading.Lock()


@contextlib.contextmanager
def checked(
    device: str | None = None, exact: bool = False, all_checks: bool = False
) -> Iterator[Check]:
    """A session on this device, or on the one that the run was asked for.

    `exact`: on a CPU, products of float32 are exact where a GPU would take tf32. Else they are
    refused, since nothing says what they come to. `all_checks`: on a GPU, races and reads of what
    nobody wrote as well, which take longer to compile; a CPU has them always.
    """
    where = device or chosen.get_device()
    check = Check(exact) if where == "cpu" else _make_gpu_check(all_checks)
    if not _SESSION_LOCK.acquire(blocking=False):
        raise RuntimeError("a checked session is open already: they do not nest")
    try:
        with contextlib.ExitStack() as stack:
            check.open(stack)
            yield check
        if check.launches.errors:  # and the code under test went on as if nothing were
            raise check.launches.errors[0]
    finally:
        check.close()
        _SESSION_LOCK.release()


def preload_checker() -> None:
    """What a session on this device needs to be loaded, so that forks find it there."""
    if chosen.get_device() == "cpu":
        from harness.kernels.check import cpu_launcher, torch_modes

        cpu_launcher.load_process_state()
        torch_modes.warm_operator_cache()


@contextlib.contextmanager
def run_kernels_on_cpu() -> Any:
    """Triton's kernels run on this CPU, their accesses held against their tensors.

    Nothing of torch is watched, and products of float32 are exact: for code that is to be run
    rather than checked, on a machine where nothing else runs its kernels.
    """
    from harness.kernels.check.cpu_launcher import CpuLauncher

    with CpuLauncher(MemoryTracker(), LaunchLog(), exact=True, trust_loaded_pointers=True):
        yield


def _make_gpu_check(all_checks: bool) -> Check:
    from harness.kernels.check.gpu_check import GpuCheck
    from harness.kernels.gpu import ALL_CHECKS, DEFAULT_CHECKS

    return GpuCheck(ALL_CHECKS if all_checks else DEFAULT_CHECKS)
