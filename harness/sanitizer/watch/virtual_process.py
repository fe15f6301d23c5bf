"""A process on the virtual GPU: the device from its first import of torch on, and its kernels.

Kernels run on this CPU, one at a time; what the process asked of the device is written to a file
whenever something new is asked.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import threading
from collections.abc import Callable, MutableMapping
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.core import device
from harness.core.after_import import call_after_import
from harness.sanitizer.device import record
from harness.sanitizer.device.cards import CARD_VARIABLE, get_card
from harness.sanitizer.launches import LAUNCH_CHECKS
from harness.sanitizer.watch import activation
from harness.sanitizer.watch.report_files import CHECKS_VARIABLE

_RECORDS = "virtual"  # a folder
_launch_lock = threading.RLock()
_open_sessions = contextlib.ExitStack()
_openers: list[Callable[[], None]] = []  # one, once Triton is imported


def set_variables(environment: MutableMapping[str, str], card: str | None, folder: Path) -> None:
    """Put the processes of an environment on the virtual GPU; their records go below a folder.

    They begin with `install_at_startup`.
    """
    get_card(card)  # an unknown name fails before anything starts
    environment[device.DEVICE_VARIABLE] = device.VIRTUAL
    if card is not None:
        environment[CARD_VARIABLE] = card
    environment[record.FOLDER_VARIABLE] = str(folder / _RECORDS)


def record_below(folder: Path) -> None:
    """Begin a new record of this process, which was forked from one that has asked the device."""
    record.RECORD.clear()
    record.RECORD.write_to(folder / _RECORDS)


def drop_records(folder: Path) -> None:
    """Remove what earlier processes of the folder have counted."""
    shutil.rmtree(folder / _RECORDS, ignore_errors=True)


def read_records(folder: Path) -> record.DeviceRecord:
    return record.read_records(folder / _RECORDS)


def install_at_startup() -> None:
    """Install the device once torch is imported, and the launcher once Triton is."""
    if device.get_device() == device.VIRTUAL:
        call_after_import({"torch": _install_device, "triton.runtime.jit": _install_launcher})


def _install_device(torch: ModuleType) -> None:
    from harness.sanitizer.device import installation

    if folder := os.environ.get(record.FOLDER_VARIABLE):
        record.RECORD.write_to(Path(folder))
    installation.install_device()
    activation.start_launch_checks()


def _install_launcher(jit: Any) -> None:
    """Start the launcher at the first launch, when Triton is wholly imported; once a process."""
    if _openers:
        return
    from harness.sanitizer.triton import jit_kernels

    def launch_first(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        with _launch_lock:
            open_first_session()
        return kernel.run(*args, grid=grid, warmup=warmup, **options)

    def open_first_session() -> None:
        if jit_kernels.get_run(jit.JITFunction) is launch_first:
            jit_kernels.replace_run(jit.JITFunction, before)
            _open_sessions.enter_context(_run_kernels())
            atexit.register(_open_sessions.close)  # while Triton's modules are whole

    before = jit_kernels.replace_run(jit.JITFunction, launch_first)
    _openers.append(open_first_session)


def open_first_session() -> None:
    """Run kernels from here on as the environment requests, unless this process does so already."""
    import triton.runtime.jit  # noqa: F401 - its hook appends the opener

    with _launch_lock:
        for open_session in _openers:
            open_session()


def check_kernels() -> None:
    """Open a checked session for the rest of this process, in place of the plain launcher."""
    from harness.core.device import VIRTUAL
    from harness.sanitizer.check import session

    _open_sessions.enter_context(session.checked(VIRTUAL))


def _run_kernels() -> contextlib.AbstractContextManager[Any]:
    words = os.environ.get(CHECKS_VARIABLE, "").split(",")
    if any(word not in ("", "stop", *LAUNCH_CHECKS) for word in words):
        from harness.sanitizer.watch import host_process

        return host_process.check_process()
    from harness.sanitizer.check import session

    return session.run_kernels_on_cpu()
