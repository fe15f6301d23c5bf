"""Stops a running kernel when a signal arrives that ends the program or the test.

Python runs its handlers between two instructions of its own, and a kernel is one of them: ^C would
wait for it. The C part of each handler writes the signal's number to a pipe at once; a thread reads
it and sets a field of the launch, which the kernel reads before each program and turn of a loop.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading

from harness.sanitizer.cpu.abi import LaunchField

_stopping_signals: set[int] = set()
_contexts: list[ctypes.Array[ctypes.c_uint64]] = []  # one: that of this process's launches
_pipe: list[int] = []


def stop_kernels_at(*signals: int) -> None:
    """Stop kernels at these signals, whose handlers raise; only the main thread can ask for it."""
    if threading.current_thread() is not threading.main_thread():
        return
    _stopping_signals.update(signals)
    if _pipe:
        return
    _pipe.extend(os.pipe())
    os.set_blocking(_pipe[1], False)
    signal.set_wakeup_fd(_pipe[1], warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))  # it has no such thread
    threading.Thread(target=_watch_signals, name="unfix signals", daemon=True).start()


def watch_context(context: ctypes.Array[ctypes.c_uint64]) -> None:
    _contexts[:] = [context]


def raise_if_interrupted(context: ctypes.Array[ctypes.c_uint64]) -> None:
    """Raise behind a launch that was stopped, unless the signal's own handler has raised."""
    if context[LaunchField.INTERRUPTED]:
        raise KeyboardInterrupt("a signal stopped the kernel")


def _watch_signals() -> None:
    while numbers := os.read(_pipe[0], 64):
        if not _stopping_signals.isdisjoint(numbers):
            for context in _contexts:
                context[LaunchField.INTERRUPTED] = 1
