"""A stored run of `unfix pr`: what a change of SGLang does, part by part."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from harness.core.outcomes import RunStatus
from harness.core.wording import format_count
from harness.store.pr.line_results import ChangedFunction, ReviewResult, find_worst_result
from harness.store.pr.part_results import (
    OTHER_BITS,
    ClaimChange,
    GuardChange,
    KernelAnswer,
    KernelChange,
    NewFinding,
    ToggleChange,
    ToggleEffect,
    TouchedItem,
    UnnoticedFault,
    get_test_name,
)
from harness.store.rehearse.values import DeploymentChange


class PrPart(StrEnum):
    """A part of a review, in the order in which it runs."""

    TOGGLES = "toggles"
    SUITES = "suites"
    ZOO = "zoo"
    KERNELS = "kernels"
    REHEARSE = "rehearse"
    AUDIT = "audit"
    FAULTS = "faults"


# The parts that run changed lines; the others read sources, or make faults.
RUNNING_PARTS = (PrPart.SUITES, PrPart.KERNELS, PrPart.ZOO, PrPart.REHEARSE)


class ChangedFile(msgspec.Struct):
    """A file of the package, Python or C++, with changed lines."""

    module: str
    path: str  # in the checkout
    added: int  # new or changed lines
    removed: int


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
    others: list[str] = []  # changed files that are not of the package, or neither Python nor C++
    functions: list[ChangedFunction] = []  # with changed lines, and what ran these
    accepted: list[str] = []  # results that are green all the same: --accept
    parts: list[PrPart] = []  # those that ran to their end
    planned: list[PrPart] = []
    part_seconds: dict[str, float] = {}
    toggles: list[ToggleChange] = []
    toggle_count: int = 0
    reaching: dict[str, int] = {}  # guards that run changed lines, with the number of these
    touched_guards: list[TouchedItem] = []  # those of the base, with those that were left out
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
        failing = [change for change in self.guards if change.is_worse and not change.difference]
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
        lost = sorted({one.architecture for one in self.claims if one.is_lost})
        if lost:
            return f"breaks {', '.join(lost)} of the zoo"
        moved = sorted({one.architecture for one in self.claims if one.is_worse})
        moved += [one.kernel.rpartition(":")[2] for one in self.different_kernels]
        moved += [one.guard.rpartition("::")[2] for one in self.guards if one.difference]
        if moved:
            return f"other answers: {', '.join(moved)}"
        broken = sorted({one.deployment for one in self.rehearsals if one.is_broken})
        if broken:
            return f"breaks the deployment of {', '.join(broken)}"
        brought = [one.id for one in self.toggles if one.effect is ToggleEffect.BROUGHT]
        if brought:
            return f"brings in {format_count(len(brought), 'fix')}: {', '.join(brought)}"
        return self.quiet_headline

    @property
    def quiet_headline(self) -> str:
        """What there is to say of a change of which nothing is worse."""
        if self.has_ended_early:
            return f"incomplete: {self.has_ended_early}"
        if self.unjudged_toggles:
            names = ", ".join(one.id for one in self.unjudged_toggles)
            return f"makes {format_count(len(self.unjudged_toggles), 'toggle')} stale: {names}"
        if not self.judges_lines:
            return "nothing that these parts read gets worse"
        changed = sum(one.changed for one in self.functions)
        if not changed:
            return "changes no code that a server runs"
        unrun = sum(len(one.unrun) for one in self.functions)
        if unrun:
            lines = format_count(changed, "changed line")
            return f"{self.result}: {unrun} of {lines}, of which nothing is known"
        items = len({name for one in self.functions for name in one.ran_by})
        same = ", the same bits in all of them" if self.has_same_bits else ""
        return f"no difference in {format_count(items, 'item')} that ran these lines{same}"

    @property
    def judges_lines(self) -> bool:
        """Whether parts were asked for that run lines, so that a line may be not run."""
        return any(part in self.planned for part in RUNNING_PARTS)

    @property
    def has_ended_early(self) -> str:
        """Why the review is not whole; '' if it is."""
        missing = [part for part in self.planned if part not in self.parts]
        if self.status is not RunStatus.RUNNING and missing:
            return f"not run to the end: {', '.join(missing)}"
        return "; ".join(self.status.problems)

    @property
    def has_same_bits(self) -> bool:
        """Whether all that was compared on both ends gave the same bits."""
        answers = {one.answer for one in self.kernels} - {KernelAnswer.NOT_COMPARED}
        return (
            bool(answers or self.claims)
            and answers <= {KernelAnswer.SAME}
            and not any(one.after == OTHER_BITS for one in self.claims)
        )

    @property
    def different_kernels(self) -> list[KernelChange]:
        """The kernels with other answers, unless a fix that comes in explains them."""
        explained = {one.path for one in self.toggles if one.effect is ToggleEffect.BROUGHT}
        return [
            one
            for one in self.kernels
            if one.answer is KernelAnswer.DIFFERENT and one.path not in explained
        ]

    @property
    def unjudged_toggles(self) -> list[ToggleChange]:
        """The stale toggles whose fix may be gone: no guard of theirs has passed on the head."""
        passing = {one.toggle for one in self.guards if one.plain_after == "passed"}
        stale = [one for one in self.toggles if one.effect is ToggleEffect.STALE]
        return [one for one in stale if one.id not in passing]

    @property
    def result(self) -> ReviewResult:
        """The worst of what is known."""
        if self.worse_items:
            return ReviewResult.WORSE
        if self.has_ended_early:
            return ReviewResult.INCOMPLETE
        result = find_worst_result(self.functions) if self.judges_lines else ReviewResult.SAME
        has_unjudged = result is ReviewResult.SAME and bool(self.unjudged_toggles)
        return ReviewResult.NOT_RUN if has_unjudged else result

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
        return [change.words for change in self.guards if change.is_worse]

    @property
    def model_problems(self) -> list[str]:
        """Return what fails now of architectures and deployments."""
        return [one.words for one in self.claims if one.is_worse] + [
            f"{one.deployment}: {one.what}: {one.before or 'nothing'} before, {one.after} now"
            for one in self.rehearsals
            if one.is_broken
        ]

    @property
    def worse_items(self) -> list[tuple[str, str]]:
        """Return each sentence on what is worse, with the item, kernel or file that it is of."""
        worse = [
            (
                one.path,
                f"{one.id}: {one.effect}: {one.title} ({one.before} before, {one.after} now)",
            )
            for one in self.taken_back
        ]
        worse += [(get_test_name(one.guard), one.words) for one in self.guards if one.is_worse]
        worse += [
            (one.kernel, f"{one.path}:{one.line}: {one.kernel}: {one.kind}: {one.condition}")
            for one in self.findings
            if one.is_confirmed
        ]
        reported = [one for one in self.kernels if one.answer is KernelAnswer.REPORTED]
        worse += [
            (one.kernel, f"{one.kernel}: {one.answer}: {one.why}")
            for one in [*reported, *self.different_kernels]
        ]
        worse += [(f"zoo {one.architecture}", one.words) for one in self.claims if one.is_worse]
        worse += [
            (
                f"rehearse {one.deployment}",
                f"{one.deployment}: {one.what}: {one.before or 'nothing'} before, {one.after} now",
            )
            for one in self.rehearsals
            if one.is_broken
        ]
        return worse

    @property
    def problems(self) -> list[str]:
        """Return every reason why the run is not green."""
        problems = [sentence for _, sentence in self.worse_items]
        if self.has_ended_early:
            problems.append(f"incomplete: {self.has_ended_early}")
        if ReviewResult.NOT_RUN.value not in self.accepted:
            problems += [
                f"not run: {one.id}: stale, and no guard of it has passed: {one.why}"
                for one in self.unjudged_toggles
            ]
        if self.judges_lines:
            problems += [
                problem
                for one in self.functions
                if one.result.value not in self.accepted
                for problem in one.list_problems()
            ]
        return problems

    @property
    def word(self) -> str:
        """The verdict in a word: amber is what nothing is known of."""
        if self.green:
            return "green"
        return "red" if self.result is ReviewResult.WORSE else "amber"

    @property
    def green(self) -> bool:
        return self.result is ReviewResult.SAME or self.result.value in self.accepted
