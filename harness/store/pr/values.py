"""A stored run of `unfix pr`: what a change of SGLang does, part by part."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from harness.core.outcomes import RunStatus
from harness.core.wording import format_count
from harness.store.rehearse.values import DeploymentChange


class PrPart(StrEnum):
    """A part of a review, in the order in which it runs."""

    TOGGLES = "toggles"
    SUITES = "suites"
    AUDIT = "audit"
    KERNELS = "kernels"
    FAULTS = "faults"
    ZOO = "zoo"
    REHEARSE = "rehearse"


class ChangedFile(msgspec.Struct):
    """A Python file of the package with changed lines."""

    module: str
    path: str  # in the checkout
    added: int  # new or changed lines
    removed: int


class ToggleEffect(StrEnum):
    """What a change does to a toggle."""

    TAKEN_BACK = "taken back"  # the fix was there, and the bug is
    STALE = "stale"  # a form was found before, and none is now
    APPEARS = "appears with the bug"  # the code was not there, and now its buggy form is
    MENDED = "mended"  # the same state, by a form that was mended for the run
    BROUGHT = "brought in"  # the bug was there, and the fix is
    GONE = "gone"  # the code was there, and is not


class ToggleChange(msgspec.Struct):
    """A toggle whose state or form the change alters."""

    id: str
    title: str
    symptom: str
    effect: ToggleEffect
    before: str  # its state on the base
    after: str
    upstream: list[int] = []
    path: str = ""  # in the checkout
    line: int = 0
    why: str = ""  # why it is stale, with the nearest code
    diff: str = ""  # of the mended file


PASSING_WORDS = ("passed", "", "n/a", "skipped")


class GuardChange(msgspec.Struct):
    """A guard that runs changed lines, before the change and after it.

    It has a verdict for each of its toggles; a test that names none has its outcome in their place.
    """

    guard: str
    toggle: str  # '' for a test without one
    before: str  # a verdict or an outcome; '' if it was not run
    after: str
    plain_before: str = ""  # the outcome with nothing toggled
    plain_after: str = ""
    headline: str = ""  # the failure after the change
    example: list[str] = []
    why: str = ""

    @property
    def is_lost(self) -> bool:
        """Return whether the guard proved its toggle before the change and does not after it."""
        return self.before == "proven" and self.after not in ("proven", "n/a")

    @property
    def fails_now(self) -> bool:
        """Return whether it passes on the base as it is and fails on the head as it is."""
        return self.plain_before == "passed" and self.plain_after not in PASSING_WORDS


class NewFinding(msgspec.Struct):
    """A finding of the audit that the base does not have."""

    kernel: str
    path: str
    line: int
    kind: str
    text: str  # the line of code
    condition: str
    confirmed: str  # "confirmed", or why not

    @property
    def is_confirmed(self) -> bool:
        return self.confirmed.startswith("confirmed")


class KernelAnswer(StrEnum):
    """How a changed kernel's answers compare with the earlier ones, on the same launches."""

    REPORTED = "reported"  # the changed kernel leaves its tensors, and the earlier one does not
    DIFFERENT = "different"
    ROUNDING = "within rounding"
    SAME = "same bits"
    NOT_COMPARED = "not compared"


class KernelChange(msgspec.Struct):
    """A kernel whose code, helpers, constants or launches changed."""

    kernel: str  # module:name
    path: str
    line: int
    answer: KernelAnswer
    launches: int = 0  # that were run on both
    differing: int = 0
    why: str = ""  # why it was not compared, or what differs
    smallest: list[str] = []  # the smallest launch that differs, a line for each argument
    source: str = ""  # where the launches come from


class UnnoticedFault(msgspec.Struct):
    """A fault in a changed line that no guard detects."""

    id: str
    target: str
    path: str
    line: int
    words: str
    diff: str
    outcome: str  # survived or unreached
    nearest: str = ""  # the guard that comes nearest
    nearness: str = ""  # how near: "runs line 12 and passes"


class TouchedItem(msgspec.Struct):
    """An architecture of the zoo, or a deployment, that is known to run changed code."""

    name: str
    why: str  # "launches rotate_kernel; runs 2 changed functions, such as m:Rotary.forward"
    hits: int = 0  # changed kernels and functions that it runs
    seconds: float = 0.0  # of the run that is known
    left_out: str = ""  # why it was not run here
    is_over_budget: bool = False  # that is why


class ClaimChange(msgspec.Struct):
    """A claim of the zoo about an architecture that runs changed code."""

    architecture: str
    claim: str
    before: str
    after: str
    headline: str = ""

    @property
    def is_lost(self) -> bool:
        return self.before in ("holds", "known") and self.after in ("fails", "absent")


class PrRun(msgspec.Struct):
    """One call of `unfix pr` with its results."""

    id: str
    started: str  # ISO 8601, UTC
    checkout: str
    range: str  # as it was asked for
    base: str  # the release of each end
    head: str
    status: RunStatus = RunStatus.RUNNING  # running, finished, stopped
    seconds: float = 0.0
    command: list[str] = []
    machine: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    subjects: list[str] = []  # of the commits, the newest first
    files: list[ChangedFile] = []
    others: list[str] = []  # changed files that are not of the package, or not Python
    parts: list[PrPart] = []  # those that ran to their end
    planned: list[PrPart] = []
    part_seconds: dict[str, float] = {}
    toggles: list[ToggleChange] = []
    toggle_count: int = 0
    reaching: dict[str, int] = {}  # guards that run changed lines, with the number of these
    guards: list[GuardChange] = []
    findings: list[NewFinding] = []
    audited: int = 0  # kernels that changed and were audited
    kernels: list[KernelChange] = []
    faults: list[UnnoticedFault] = []
    fault_counts: dict[str, int] = {}
    faults_made: int = 0
    architectures: list[TouchedItem] = []  # of the zoo
    claims: list[ClaimChange] = []
    deployments: list[TouchedItem] = []
    rehearsals: list[DeploymentChange] = []  # of the deployments that were rehearsed on both ends
    runs: dict[str, str] = {}  # ids of the stored runs of other kinds
    notes: list[str] = []  # what was left out, and why

    def count_toggles(self, *effects: ToggleEffect) -> int:
        return sum(change.effect in effects for change in self.toggles)

    @property
    def taken_back(self) -> list[ToggleChange]:
        wrong = (ToggleEffect.TAKEN_BACK, ToggleEffect.APPEARS)
        return [change for change in self.toggles if change.effect in wrong]

    @property
    def headline(self) -> str:
        """The one thing to read first."""
        if self.taken_back:
            fixes = ", ".join(f"{one.id} ({one.title})" for one in self.taken_back)
            return f"takes back {format_count(len(self.taken_back), 'fix')}: {fixes}"
        failing = [change for change in self.guards if change.fails_now or change.is_lost]
        if failing:
            names = sorted({change.guard.rpartition("::")[2] for change in failing})
            return f"breaks {format_count(len(names), 'guard')}: {', '.join(names)}"
        reported = [one.kernel for one in self.kernels if one.answer is KernelAnswer.REPORTED]
        if reported:
            return f"{', '.join(reported)} now accesses memory outside of its tensors"
        confirmed = [one for one in self.findings if one.is_confirmed]
        if confirmed:
            lines = ", ".join(f"{one.kernel}:{one.line}" for one in confirmed)
            return f"{format_count(len(confirmed), 'new finding')} of the audit: {lines}"
        stale = [one.id for one in self.toggles if one.effect is ToggleEffect.STALE]
        if stale:
            return f"makes {format_count(len(stale), 'toggle')} stale: {', '.join(stale)}"
        lost = sorted({one.architecture for one in self.claims if one.is_lost})
        if lost:
            return f"breaks {', '.join(lost)} of the zoo"
        broken = sorted({one.deployment for one in self.rehearsals if one.is_broken})
        if broken:
            return f"breaks the deployment of {', '.join(broken)}"
        if not self.files:
            return "changes no Python code of the package"
        brought = [one.id for one in self.toggles if one.effect is ToggleEffect.BROUGHT]
        if brought:
            return f"brings in {format_count(len(brought), 'fix')}: {', '.join(brought)}"
        return "nothing that is watched here gets worse"

    @property
    def summary(self) -> str:
        guards = len(self.reaching)
        parts = [
            f"{self.base}..{self.head}: {format_count(len(self.files), 'file')}",
            f"{format_count(guards, 'guard')} {'run' if guards != 1 else 'runs'} changed lines",
            self.headline,
        ]
        return "; ".join(parts)

    @property
    def guard_problems(self) -> list[str]:
        problems = []
        for change in self.guards:
            if change.is_lost:
                problems.append(
                    f"{change.guard}: {change.toggle} was proven and is {change.after} now: "
                    f"{change.why or change.headline}"
                )
            elif change.fails_now:
                problems.append(f"{change.guard}: passed and fails now: {change.headline}")
        return problems

    @property
    def model_problems(self) -> list[str]:
        """Return what fails now of architectures and deployments."""
        claims = [
            f"{one.architecture}: {one.claim} held and "
            f"{'is absent' if one.after == 'absent' else 'fails'} now: {one.headline}"
            for one in self.claims
            if one.is_lost
        ]
        return claims + [
            f"{one.deployment}: {one.what}: {one.before or 'nothing'} before, {one.after} now"
            for one in self.rehearsals
            if one.is_broken
        ]

    @property
    def problems(self) -> list[str]:
        """Return every reason why the run is not green."""
        problems = [
            f"{one.id}: {one.effect}: {one.title} ({one.before} before, {one.after} now)"
            for one in self.taken_back
        ]
        problems += [
            f"{one.id}: stale: {one.why}"
            for one in self.toggles
            if one.effect is ToggleEffect.STALE
        ]
        problems += self.guard_problems
        problems += [
            f"{one.path}:{one.line}: {one.kernel}: {one.kind}: {one.condition}"
            for one in self.findings
            if one.is_confirmed
        ]
        problems += [
            f"{one.kernel}: {one.why}"
            for one in self.kernels
            if one.answer is KernelAnswer.REPORTED
        ]
        problems += self.model_problems
        for noun, items in (("architecture", self.architectures), ("deployment", self.deployments)):
            if any(one.is_over_budget for one in items) and all(one.left_out for one in items):
                problems.append(
                    f"no {noun} that runs changed code was run: "
                    f"{next(one.left_out for one in items if one.is_over_budget)}"
                )
        missing = [part for part in self.planned if part not in self.parts]
        if self.status is not RunStatus.RUNNING and missing:
            problems.append(f"not run to the end: {', '.join(missing)}")
        problems += self.status.problems
        return problems

    @property
    def green(self) -> bool:
        return not self.problems
