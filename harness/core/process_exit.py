"""The end of a process, in one table: its kind, for verdicts, and its description.

Example: `describe_exit(-11)` is a SEGFAULT, "segmentation fault (SIGSEGV)"; the same code with
`exceeded_seconds=5` is a HANG, "it did not end within 5 s", since the limit came first.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import StrEnum


class ExitKind(StrEnum):
    SUCCESS = "success"
    EXITED = "exited"  # exit code other than 0
    SEGFAULT = "segfault"
    ABORT = "abort"
    KILLED = "killed"  # by any other signal
    HANG = "hang"
    OUT_OF_MEMORY = "out-of-memory"
    STOPPED = "stopped"  # on request
    # Of a command below its supervisor, which may have a server beside it:
    MISSING = "missing"  # there is no such command
    SERVER_ENDED = "server-ended"  # its server ended before it
    URL_TAKEN = "url-taken"  # another server answers at its server's URL


_SIGNALS = {
    signal.SIGSEGV: (ExitKind.SEGFAULT, "segmentation fault"),
    signal.SIGBUS: (ExitKind.SEGFAULT, "bus error"),
    signal.SIGABRT: (ExitKind.ABORT, "aborted"),
    signal.SIGALRM: (ExitKind.HANG, "it did not end in time"),
}
# The signals of crashes and of the OOM killer.
_CRASHES = {"SIGSEGV", "SIGABRT", "SIGKILL", "SIGBUS", "SIGILL", "SIGFPE"}
_SHELL_OFFSET = 128  # a shell adds it to the number of the signal that ended its command


@dataclass(frozen=True)
class ProcessExit:
    kind: ExitKind
    code: int  # if negative, the number of a signal
    words: str


def describe_exit(
    code: int,
    *,
    exceeded_seconds: float | None = None,
    exceeded_bytes: int | None = None,
    killed_by_kernel: bool = False,
) -> ProcessExit:
    """Describe an exit code (negative for a signal), with the limit that the process exceeded.

    `killed_by_kernel`: the kernel killed a process for lack of memory meanwhile.
    """
    if exceeded_seconds is not None:
        return ProcessExit(ExitKind.HANG, code, f"it did not end within {exceeded_seconds:g} s")
    if exceeded_bytes is not None:
        gibibytes = exceeded_bytes / 2**30
        return ProcessExit(ExitKind.OUT_OF_MEMORY, code, f"it took more than {gibibytes:.1f} GiB")
    if code == -signal.SIGKILL and killed_by_kernel:
        return ProcessExit(ExitKind.OUT_OF_MEMORY, code, "the kernel killed it: out of memory")
    if code >= 0:
        kind = ExitKind.EXITED if code else ExitKind.SUCCESS
        return ProcessExit(kind, code, f"exit code {code}")
    kind, words = _SIGNALS.get(-code, (ExitKind.KILLED, "killed"))  # type: ignore[call-overload]
    return ProcessExit(kind, code, f"{words} ({get_signal_name(-code)})")


def describe_code(code: int) -> str:
    """Return an exit code or the name of a signal, as in 'exit code 1' and 'SIGSEGV'."""
    return get_signal_name(-code) if code < 0 else f"exit code {code}"


def find_crash_below_shell(code: int) -> str:
    """Name the signal that ended a command below a shell; '' if none did or it was a stop."""
    name = get_signal_name(code - _SHELL_OFFSET) if code > _SHELL_OFFSET else ""
    return name if name in _CRASHES else ""


def get_signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
