"""What a run of `unfix mutate` leaves behind, as values: its faults, and what each came to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import msgspec

from harness.store.mutate.faults import DroppedFault, MutationFault


class FaultOutcome(StrEnum):
    """What a fault came to."""

    KILLED = "killed"
    SURVIVED = "survived"  # its code ran, and nothing noticed
    UNREACHED = "unreached"  # no guard runs its code
    EQUIVALENT = "equal"  # said to be no fault, and nothing noticed
    NOT_LIVE = "not live"  # only an import can put it in


class KillCause(StrEnum):
    """What a fault was killed by."""

    ASSERTION = "assertion"
    MEMORY_REPORT = "memory report"
    CRASH = "crash"
    CUDA_ERROR = "CUDA error"
    EXCEPTION = "exception"
    HANG = "hang"
    OUT_OF_MEMORY = "out of memory"
    EXIT = "exit"


class FaultResult(msgspec.Struct):
    """A fault, and all that is known of it."""

    fault: MutationFault
    fate: FaultOutcome
    family: str = ""  # of the toggles that its target belongs to
    how: KillCause | None = None  # it was killed
    by: str = ""  # the guard that killed it
    headline: str = ""  # what that guard said, in one line
    example: list[str] = []
    detail: str = ""
    why: str = ""  # it is not live, unreached, or equal
    passed: list[str] = []  # guards that ran its code and noticed nothing
    ran: int = 0  # how often its code ran; of a kernel, its launches
    longer: bool = False  # it was looked at a second time, with more examples
    seconds: float = 0.0
    diff: str = ""

    @property
    def is_disproved_equivalent(self) -> bool:
        """It is said to be equal, and a guard tells it from the original."""
        return self.fate is FaultOutcome.KILLED and bool(self.why)


class TargetCode(msgspec.Struct):
    """The text of a target, as its release has it."""

    module: str
    qualname: str
    path: str
    first: int
    text: str

    @property
    def target(self) -> str:
        return f"{self.module}:{self.qualname}"


class GuardFacts(msgspec.Struct):
    """A guard as it is without a fault."""

    guard: str
    outcome: str
    seconds: float
    headline: str = ""


class MutationRun(msgspec.Struct):
    """One call of `unfix mutate`, with all it found."""

    id: str
    started: str  # ISO 8601, UTC
    release: str
    status: str = "running"  # running, finished, stopped
    seconds: float = 0.0
    command: list[str] = []
    settings: dict[str, Any] = {}
    versions: dict[str, str] = {}
    machine: dict[str, Any] = {}
    at_least: float | None = None  # percent of those reached that are to be killed
    made: int = 0  # before a sample was taken
    planned: int = 0  # of those, how many this run is about
    ids: list[str] = []  # of those
    dropped: list[DroppedFault] = []
    codes: list[TargetCode] = []
    guards: list[GuardFacts] = []
    left_out: list[str] = []  # guards that are not asked, and why
    elsewhere: str = ""  # what of a wide diff no guard runs
    recorded_problems: list[str] = msgspec.field(
        default_factory=list, name="problems"
    )  # what keeps the run from being green whatever its score
    seconds_to_start: float = 0.0
    seconds_to_reach: float = 0.0
    fates: list[FaultResult] = []

    @property
    def counts(self) -> dict[str, int]:
        found = Counter(fated.fate.value for fated in self.fates)
        return {fate.value: found[fate.value] for fate in FaultOutcome if found[fate.value]}

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
        """Everything that keeps the run from being green."""
        found = list(self.recorded_problems)
        for fated in self.fates:
            if fated.is_disproved_equivalent:
                found.append(f"{fated.fault.id} is said to be equal, and {fated.by} kills it")
        if not self.made:
            found.append("no fault was made")
        done = {fated.fault.id for fated in self.fates}
        missing = len(set(self.ids) - done) if self.ids else self.planned - len(done)
        if missing > 0:
            found.append(f"{missing} fault{'s are' if missing > 1 else ' is'} not looked at yet")
        if self.status != "finished":
            going = "is still going on" if self.status == "running" else "was stopped"
            found.append(f"the run {going}")
        if self.score is None:
            found.append("no fault was reached: nothing is measured")
        elif self.at_least is not None and self.score < self.at_least:
            found.append(f"{self.score:.1f} % are killed, and {self.at_least:g} % are asked for")
        return found

    @property
    def green(self) -> bool:
        return not self.problems


def compute_score(results: Iterable[FaultResult]) -> float | None:
    """Percent killed of those that were reached; None if none was."""
    found = Counter(fated.fate for fated in results)
    reached = found[FaultOutcome.KILLED] + found[FaultOutcome.SURVIVED]
    return 100.0 * found[FaultOutcome.KILLED] / reached if reached else None
