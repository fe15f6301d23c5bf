"""How something ended, what that says about an item, and where a whole run stands.

Every kind of run uses these three enums, so a word means the same in each report. Example: a guard
ends its process by SIGSEGV, the `Outcome` segfault, on both sides of its cell. So its `Verdict` is
segfault, which is not good, and the run is red although its `RunStatus` is finished.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import StrEnum


class Outcome(StrEnum):
    """How a process, a command, a test, or an attempt at an item ended."""

    PASSED = "passed"  # exit code 0
    FAILED = "failed"  # an assertion, or a report of a checked kernel; of a command: exit code 1
    ERROR = "error"  # any other failure: a fixture, an import, an exception; of a command: exit 2
    REFUSED = "refused"  # a checker, a stand-in or a fixture could not follow the code
    FLAKY = "flaky"  # one example both fails and passes; a cell fails and then passes
    UNDRAWN = "undrawn"  # the example to repeat is drawn otherwise on this side
    SKIPPED = "skipped"
    NA = "n/a"  # it does not apply here, for a reason that it gives
    SEGFAULT = "segfault"
    ABORT = "abort"
    SIGNAL = "signal"  # ended by another signal, mostly by SIGKILL from outside
    HANG = "hang"  # it ran past its limit
    OUT_OF_MEMORY = "out-of-memory"
    CUDA_ERROR = "cuda-error"
    EXITED = "exited"  # the process ended by itself, where it had to go on
    STOPPED = "stopped"  # on request
    LOST = "lost"  # the machine failed it: its supervisor or its node died, or the disk was full
    NOT_READY = "not-ready"  # nothing here can run it; of a command: exit code 3
    # Of a command below its supervisor, which may have a server beside it:
    NOT_FOUND = "not-found"  # there is no such command
    SERVER_ENDED = "server-ended"  # its server ended before it
    URL_TAKEN = "url-taken"  # another server answers at its server's URL

    @property
    def is_death(self) -> bool:
        """Return whether a limit, a signal or the device ended it; a verdict has the same word."""
        return self in DEATHS


DEATHS = (
    Outcome.SEGFAULT,
    Outcome.ABORT,
    Outcome.SIGNAL,
    Outcome.HANG,
    Outcome.OUT_OF_MEMORY,
    Outcome.CUDA_ERROR,
)


class Verdict(StrEnum):
    """What the results of an item say about it."""

    NA = "n/a"
    # Of a guard and a toggle, by both sides:
    PROVEN = "proven"
    TOOTHLESS = "toothless"
    UNREACHED = "unreached"  # the toggled code never ran; of a fault: no guard runs its code
    BROKEN = "broken"
    FLAKY = "flaky"
    UNDRAWN = "undrawn"
    STALE = "stale"
    # The same by one side, and of an item in a history:
    HAS_BUG = "has the bug"  # it fails by a bug that the release has
    HAS_FIX = "has the fix"
    DIFFERS = "differs"  # running says other than the sources; of servers: a token, not by noise
    # A death that decides:
    SEGFAULT = "segfault"
    ABORT = "abort"
    SIGNAL = "signal"
    HANG = "hang"
    OUT_OF_MEMORY = "out-of-memory"
    CUDA_ERROR = "cuda-error"
    # Of a planted fault:
    KILLED = "killed"
    SURVIVED = "survived"  # its code ran, and no guard failed
    REFUSED = "refused"  # a checker, a stand-in or a fixture could not follow the changed code
    LOST = "lost"  # the machine failed the guard's process
    NOT_LIVE = "not live"  # only an import can apply it
    # Of two servers' answers, where `equal` is also a fault that is recorded as equivalent:
    SAME = "same"
    IMPROVED = "improved"
    EQUAL = "equal"
    NEAR_TIE = "near-tie"  # a token differs that the base nearly chose
    REGRESSED = "regressed"
    DRIFTS = "drifts"  # the logprobs differ by more than noise, at equal tokens
    # Of a claim about a model:
    HOLDS = "holds"
    KNOWN = "known"  # it fails, and the model's file names the reason
    UNTESTED = "not tested"  # nothing was compared; the headline says why
    # Of a kernel, by an audit:
    SAFE = "safe"
    OVERFLOWS = "overflow"
    OVERRUNS = "overruns"
    # Of any of these, of a run of a bisected command, and of an item in a history:
    PASSES = "passes"
    FAILS = "fails"
    CANNOT_TELL = "cannot tell"

    @property
    def is_good(self) -> bool:
        return self in GOOD_VERDICTS


GOOD_VERDICTS = (
    *(Verdict.NA, Verdict.PROVEN, Verdict.HAS_BUG, Verdict.HAS_FIX),
    *(Verdict.SAME, Verdict.IMPROVED, Verdict.EQUAL, Verdict.NEAR_TIE),
    *(Verdict.HOLDS, Verdict.KNOWN, Verdict.SAFE, Verdict.PASSES, Verdict.KILLED),
)


class RunStatus(StrEnum):
    """Where a whole run stands; a finished one is green if it has no problem, and else red."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"  # before its end: it can be resumed
    REFUSED = "refused"  # its call cannot be answered, which only running it showed

    @property
    def problems(self) -> list[str]:
        """Return why a run with this status is not whole; nothing for a finished one."""
        if self is RunStatus.FINISHED:
            return []
        words = {RunStatus.RUNNING: "is still going on", RunStatus.STOPPED: "was stopped"}
        return [f"the run {words.get(self, 'was refused')}"]


def join_statuses(statuses: Iterable[RunStatus]) -> RunStatus:
    """Return the status of several runs as one."""
    return RunStatus.FINISHED if set(statuses) <= {RunStatus.FINISHED} else RunStatus.STOPPED


def require_word(word: Outcome | Verdict | None, allowed: Collection[Outcome | Verdict]) -> None:
    """Refuse a word of another kind of item: a comparison of servers is never `proven`."""
    if word is not None and word not in allowed:
        raise ValueError(f"{word.value!r} is no verdict or outcome of this kind of item")
