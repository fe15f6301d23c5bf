"""A checked session: while it is open, every kernel launch of the process is checked.

with checking.checked() as check:
    launch_something(torch.empty(8, device=check.device))
    check.assert_written(out)
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from harness.core import device as chosen
from harness.sanitizer.check.declarations import Check
from harness.sanitizer.check.launch_log import LaunchLog
from harness.sanitizer.check.options import ALL_KERNELS, CheckOptions
from harness.sanitizer.check.tracked_memory import MemoryTracker
from harness.sanitizer.cpu.arithmetic import Arithmetic
from harness.sanitizer.violations.exceptions import Violation
from harness.sanitizer.violations.kinds import CHECK_NAMES

_SESSION_LOCK = threading.Lock()


@contextlib.contextmanager
def checked(
    device: str | None = None,
    exact: bool = False,
    all_checks: bool = False,
    *,
    checks: Sequence[str] = CHECK_NAMES,
    max_reports: int = 1,
    all_configurations: bool = False,
    launch_checks: Sequence[str] = (),
    bounds: str = "tensor",
) -> Iterator[Check]:
    """Open a session on a device ("cpu", "cuda", "virtual"), by default on the run's.

    "virtual" installs the virtual GPU in this process, for good.

    `exact`: on a CPU, compute products of float32 exactly where a GPU would use tf32 (otherwise
    such a kernel is refused, for tf32's result is not specified), and refuse approximate
    instructions (`ex2.approx`), which are computed within CUDA's documented bounds otherwise.
    `all_checks`: on a GPU, look for races and uninitialized reads too, which take longer to
    compile; on a CPU they are always on. `launch_checks`: "graphs", "streams" or both, on a GPU or
    the virtual one.

    On a CPU: `checks` are those whose violations are reported. With `max_reports` above 1 a launch
    goes on behind a violation; the first one is raised when the session ends, the others are its
    notes. An access outside of its tensor reads 0 then, and writes nothing. Of an autotuned kernel
    the first configuration runs; with `all_configurations` each of them (`check.launches` counts
    them in `configuration_counts`). With `bounds="storage"` a pointer may reach the whole storage
    that its tensor is a view of.
    """
    options = CheckOptions(
        Arithmetic.EXACT if exact else Arithmetic.SPECIFIED,
        tuple(checks),
        max_reports,
        all_configurations,
        frozenset([ALL_KERNELS] if bounds == "storage" else []),
    )
    if bounds not in ("tensor", "storage"):
        raise ValueError(f"bounds are those of the tensor or of its storage, and not '{bounds}'")
    device = device or chosen.get_device()
    if launch_checks and device == "cpu":
        raise ValueError("graphs and streams are checked on a GPU or on device 'virtual'")
    with (
        open_session(_make_check(device, options, all_checks)) as check,
        _check_launches(check, launch_checks),
    ):
        yield check


@contextlib.contextmanager
def open_session(check: Check) -> Iterator[Check]:
    """Open the session of a check; at its end its first error is raised, or noted on another."""
    if not _SESSION_LOCK.acquire(blocking=False):
        raise RuntimeError("a checked session is open already: they do not nest")
    try:
        with contextlib.ExitStack() as stack:
            check.open(stack)
            try:
                yield check
            except BaseException as error:
                check.note_errors(error)
                raise
        check.raise_first_error()
    finally:
        check.close()
        _SESSION_LOCK.release()


def _check_launches(
    check: Check, launch_checks: Sequence[str]
) -> contextlib.AbstractContextManager[Any]:
    if not launch_checks:
        return contextlib.nullcontext()
    from harness.sanitizer.launches.launch_checks import trace_launches

    def raise_violation(violation: Violation) -> None:
        check.launches.errors.append(violation)
        raise violation

    check.launches.keeps_tensors = False
    return trace_launches(launch_checks, raise_violation)


def preload_checker() -> None:
    """Load what a session on this device needs, for the forks of this process."""
    if chosen.get_device() != "cuda":
        from harness.sanitizer.check import launcher_state, torch_modes

        launcher_state.load_launcher_state()
        torch_modes.warm_operator_cache()


@contextlib.contextmanager
def run_kernels_on_cpu() -> Any:
    """Run Triton's kernels on this CPU, with their accesses checked against their tensors.

    torch's own operations are not tracked, and products of float32 are exact: for code that should
    run, not be checked, on a machine without a GPU.
    """
    from harness.sanitizer.check.cpu_launcher import CpuLauncher

    launches = LaunchLog()
    launches.keeps_tensors = False  # a program's memory lives as long as the program says
    with CpuLauncher(
        MemoryTracker(), launches, CheckOptions(Arithmetic.CLOSE), trust_loaded_pointers=True
    ):
        yield


def _make_check(device: str, options: CheckOptions, all_checks: bool) -> Check:
    if device == "virtual":
        from harness.sanitizer.check.virtual_check import VirtualCheck

        return VirtualCheck(options)
    if device == "cpu":
        return Check(options)
    from harness.sanitizer.check.gpu_check import GpuCheck
    from harness.sanitizer.gpu import ALL_CHECKS, DEFAULT_CHECKS

    whole_storages = bool(options.storage_kernels)
    return GpuCheck(ALL_CHECKS if all_checks else DEFAULT_CHECKS, whole_storages)
