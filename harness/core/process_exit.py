"""The end of a process, in one table: its kind, for verdicts, and its description.

Example: `describe_exit(-11)` is a SEGFAULT, "segmentation fault (SIGSEGV)"; the same code with
`exceeded_seconds=5` is a HANG, "it did not end within 5 s", since the limit came first.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from harness.core.outcomes import Outcome

_SIGNALS = {
    signal.SIGSEGV: (Outcome.SEGFAULT, "segmentation fault"),
    signal.SIGBUS: (Outcome.SEGFAULT, "bus error"),
    signal.SIGABRT: (Outcome.ABORT, "aborted"),
    signal.SIGALRM: (Outcome.HANG, "it did not end in time"),
}
# The signals of crashes and of the OOM killer.
_CRASHES = {"SIGSEGV", "SIGABRT", "SIGKILL", "SIGBUS", "SIGILL", "SIGFPE"}
_SHELL_OFFSET = 128  # a shell adds it to the number of the signal that ended its command


@dataclass(frozen=True)
class ProcessExit:
    kind: Outcome
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
        return ProcessExit(Outcome.HANG, code, f"it did not end within {exceeded_seconds:g} s")
    if exceeded_bytes is not None:
        gibibytes = exceeded_bytes / 2**30
        return ProcessExit(Outcome.OUT_OF_MEMORY, code, f"it took more than {gibibytes:.1f} GiB")
    if code == -signal.SIGKILL and killed_by_kernel:
        return ProcessExit(Outcome.OUT_OF_MEMORY, code, "the kernel killed it: out of memory")
    if code >= 0:
        kind = Outcome.EXITED if code else Outcome.PASSED
        return ProcessExit(kind, code, f"exit code {code}")
    kind, words = _SIGNALS.get(-code, (Outcome.SIGNAL, "killed"))  # type: ignore[call-overload]
    return ProcessExit(kind, code, f"{words} ({get_signal_name(-code)})")


def describe_code(code: int) -> str:
    """Return an exit code or the name of a signal, as in 'exit code 1' and 'SIGSEGV'."""
    return get_signal_name(-code) if code < 0 else f"exit code {code}"


def find_crash_below_shell(code: int) -> int:
    """Find the signal that ended a command below a shell; 0 if none did or it was a stop."""
    number = code - _SHELL_OFFSET
    return number if number > 0 and get_signal_name(number) in _CRASHES else 0


def get_signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
