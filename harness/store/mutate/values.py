"""A stored run of `unfix mutate`: its faults, and the outcome of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import msgspec

from harness.core.outcomes import RunStatus, Verdict, require_word
from harness.store.mutate.faults import DroppedFault, MutationFault


class KillCause(StrEnum):
    """The way in which a guard detected a fault."""

    ASSERTION = "assertion"
    MEMORY_REPORT = "memory report"
    CRASH = "crash"
    CUDA_ERROR = "CUDA error"
    EXCEPTION = "exception"
    EXIT = "exit"


NO_EVIDENCE_OUTCOMES = (
    Verdict.REFUSED,
    Verdict.HANG,
    Verdict.OUT_OF_MEMORY,
    Verdict.LOST,
)
FAULT_VERDICTS = (
    *(Verdict.KILLED, Verdict.SURVIVED, *NO_EVIDENCE_OUTCOMES),
    *(Verdict.UNREACHED, Verdict.EQUAL, Verdict.NOT_LIVE),
)
# The fates of faults whose code ran; only a killed one counts as detected.
REACHED_OUTCOMES = (Verdict.KILLED, Verdict.SURVIVED, *NO_EVIDENCE_OUTCOMES)


class FaultResult(msgspec.Struct):
    """A fault with its outcome."""

    fault: MutationFault
    fate: Verdict
    family: str = ""  # the family of the target's toggles
    how: KillCause | None = None  # for a killed fault
    by: str = ""  # the guard that killed it
    headline: str = ""  # that guard's failure in one line
    example: list[str] = []
    detail: str = ""
    why: str = ""  # the reason why it is without evidence, not live, unreached, or equivalent
    passed: list[str] = []  # guards that passed and ran its code
    ran: int = 0  # calls of its code, or launches of its kernel
    stand_ins: dict[str, int] = {}  # of the virtual GPU: how often each computed in its guards
    longer: bool = False  # after a second attempt, with more examples
    seconds: float = 0.0
    diff: str = ""

    def __post_init__(self) -> None:
        require_word(self.fate, FAULT_VERDICTS)

    @property
    def is_disproved_equivalent(self) -> bool:
        """Return whether a guard detects this fault although it is recorded as equivalent."""
        return self.fate is Verdict.KILLED and bool(self.why)


class TargetCode(msgspec.Struct):
    """The text of a target in its release."""

    module: str
    qualname: str
    path: str
    first: int
    text: str

    @property
    def target(self) -> str:
        return f"{self.module}:{self.qualname}"


class GuardFacts(msgspec.Struct):
    """A guard's run without a fault."""

    guard: str
    outcome: str
    seconds: float
    headline: str = ""
    stand_ins: dict[str, int] = {}


class MutationRun(msgspec.Struct):
    """One call of `unfix mutate` with its results."""

    id: str
    started: str  # ISO 8601, UTC
    release: str
    status: RunStatus = RunStatus.RUNNING  # running, finished, stopped
    seconds: float = 0.0
    command: list[str] = []
    settings: dict[str, Any] = {}
    versions: dict[str, str] = {}
    machine: dict[str, Any] = {}
    at_least: float | None = None  # required percentage of killed faults among the reached
    fault_count: int = 0  # faults before sampling
    planned: int = 0  # faults in the sample
    ids: list[str] = []  # ids of the faults in the sample
    dropped: list[DroppedFault] = []
    codes: list[TargetCode] = []
    guards: list[GuardFacts] = []
    left_out: list[str] = []  # guards that do not run, with the reasons
    elsewhere: str = ""  # the part of a wide diff that no guard runs
    # Problems that make the run not green at any score.
    recorded_problems: list[str] = msgspec.field(default_factory=list, name="problems")
    seconds_to_start: float = 0.0
    seconds_to_reach: float = 0.0
    fates: list[FaultResult] = []

    @property
    def counts(self) -> dict[str, int]:
        counts = Counter(result.fate for result in self.fates)
        return {fate.value: counts[fate] for fate in FAULT_VERDICTS if counts[fate]}

    @property
    def score(self) -> float | None:
        return compute_score(self.fates)

    @property
    def summary(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        score = "nothing reached" if self.score is None else f"{self.score:.1f} % killed"
        return f"{self.release}: {score}; {counts}"

    @property
    def problems(self) -> list[str]:
        """Return every reason why the run is not green."""
        problems = list(self.recorded_problems)
        for result in self.fates:
            if result.is_disproved_equivalent:
                problems.append(f"{result.fault.id} is listed as equal, and {result.by} kills it")
        if not self.fault_count:
            problems.append("no fault was made")
        done = {result.fault.id for result in self.fates}
        missing = len(set(self.ids) - done) if self.ids else self.planned - len(done)
        if missing > 0:
            problems.append(f"{missing} fault{'s are' if missing > 1 else ' is'} not tried yet")
        problems += self.status.problems
        if self.score is None:
            problems.append("no fault was reached: nothing is measured")
        elif self.at_least is not None and self.score < self.at_least:
            problems.append(f"{self.score:.1f} % are killed, and {self.at_least:g} % are required")
        return problems

    @property
    def green(self) -> bool:
        return not self.problems


def compute_score(results: Iterable[FaultResult]) -> float | None:
    """Return the percentage of killed faults among the reached, or None if none was reached."""
    counts = Counter(result.fate for result in results)
    reached = sum(counts[outcome] for outcome in REACHED_OUTCOMES)
    return 100.0 * counts[Verdict.KILLED] / reached if reached else None
