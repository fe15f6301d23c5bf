"""The values of an audit: findings, the launches that show them, and verdicts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from harness.core.outcomes import Verdict

CONFIRMED = "confirmed"
CONFIRMED_IN_PART = f"{CONFIRMED}: some programs of the grid alone"  # a result on a GPU
NO_TIME = "there was no time left for it"
PASSED_AT_THRESHOLD = "at it passes"  # a run of all programs of the grid
FindingKey = tuple[str, str, str]  # kind, kernel, text of the line
# Why an overflow by arithmetic was not observed:
NEVER_EXECUTED = "not run: no launch that is tried reaches this line"
BEYOND_MEMORY = "not run: the launches that were tried go more than 512 GiB past a tensor"
NEEDS_INT64 = "not run: a number of its launch takes 64 bits, and it is read with 32"


KERNEL_VERDICTS = (Verdict.SAFE, Verdict.OVERFLOWS, Verdict.OVERRUNS, Verdict.CANNOT_TELL)


class FindingKind(StrEnum):
    OVERFLOWS = "overflow"
    OVERRUNS = "overruns"


@dataclass(frozen=True, slots=True)
class ModelThreshold:
    """The smallest load at which a model's launch overflows; 0 if none within the limits does."""

    model: str
    threshold: int


@dataclass(frozen=True, slots=True)
class LaunchArgument:
    """The argument for one parameter of a launch."""

    name: str
    kind: str  # Triton's type, or "constexpr"
    value: Any = None  # a number, or a constant as JSON
    elements: int = 0  # the elements of a tensor that the launch may reach
    holds: tuple[int, int] | None = None  # two alternating numbers that fill a tensor


@dataclass(frozen=True, slots=True)
class TrialLaunch:
    """One launch of a kernel, as data."""

    grid: tuple[int, ...]
    program: tuple[int, ...]  # the only one that runs, if not all can
    arguments: tuple[LaunchArgument, ...]


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One line of a kernel with an integer overflow, or with an access past a tensor."""

    kernel: str
    module: str
    file: str
    line: int
    text: str
    element: str  # the type that is too narrow, or the tensor that is too small
    access: str  # load, store, …
    access_line: int
    quantity: str  # the growing quantity of the limits file
    threshold: int
    largest: int  # the largest value of the quantity
    shape: str  # the rest of the condition, in the caller's words
    grows: str  # the growing number, in the caller's words
    value: int  # the value of that number at the threshold
    model: str  # the model with that shape
    reaches: tuple[ModelThreshold, ...]
    arithmetic: str
    launched: str  # the host's file and line, if known
    confirmed: str = ""  # "confirmed", "confirmed on a …", or "not run: …"
    since: str = ""  # the first release that has it
    setting: str = ""  # the server's setting that allows so large a quantity
    kind: FindingKind = FindingKind.OVERFLOWS
    constants: tuple[str, ...] = ()  # the compiled constants, each with its source
    trials: tuple[TrialLaunch, ...] = ()  # the largest passing launch, and the one at the threshold
    on_gpu: str = ""  # the GPU that ran it, and the result if that does not confirm it

    @property
    def is_confirmed(self) -> bool:
        return self.confirmed.startswith(CONFIRMED)

    @property
    def nearness(self) -> float:
        """The threshold's share of the limit: the smaller, the nearer to real loads."""
        return self.threshold / self.largest

    @property
    def is_observed(self) -> bool:
        """Whether no run contradicts the overflow that arithmetic gives."""
        return not self._unobserved_reason

    @property
    def _unobserved_reason(self) -> str:
        """The reason why no run showed the overflow, if runs could have."""
        gpu, _, shown = self.on_gpu.partition(": ")
        if shown == PASSED_AT_THRESHOLD and not self.is_confirmed:
            return f"the launch passes on an {gpu}"
        unseen = self.confirmed in (NEVER_EXECUTED, BEYOND_MEMORY, NEEDS_INT64)
        return self.confirmed.removeprefix("not run: ") if unseen else ""

    @property
    def line_key(self) -> tuple[str, int]:
        return self.file, self.line

    @property
    def key(self) -> FindingKey:
        """The identity of the finding in other releases, independent of the kernel's file."""
        return self.kind, self.kernel, " ".join(self.text.split())

    @property
    def condition(self) -> str:
        shape = f"{self.shape}: " if self.shape else ""
        if self.kind is FindingKind.OVERFLOWS:
            return f"{shape}from {self.grows} = {self.value:,} on"
        return f"{shape}at {self.grows} = {self.value:,}" if self.grows else f"at {self.shape}"

    def describe_as_reason(self, why: str) -> str:
        """Describe an overflow by arithmetic that is no finding: a reason for `cannot tell`."""
        return f"line {self.line} overflows by arithmetic ({self.condition}); {why}"


@dataclass(frozen=True, slots=True)
class KernelAudit:
    """One kernel's verdict, with its findings and the reasons why the rest is unknown."""

    kernel: str
    module: str
    file: str
    line: int
    verdict: Verdict
    accesses: int
    findings: tuple[AuditFinding, ...] = ()
    reasons: tuple[str, ...] = ()
    helper_of: str = ""  # the kernels that call it, if it is a helper
    last: int = 0  # the last line of a helper

    def drop_findings(self, keys: Collection[FindingKey]) -> KernelAudit:
        findings = tuple(each for each in self.findings if each.key not in keys)
        verdict = judge_kernel(findings, self.reasons) if self.findings else self.verdict
        return replace(self, findings=findings, verdict=verdict)

    def apply_exemptions(
        self, reasons_by_key: Mapping[FindingKey, str], until_confirmed: Collection[FindingKey] = ()
    ) -> KernelAudit:
        """Drop the findings that are exempt; unconfirmed ones become reasons, not proof.

        Exemptions in `until_confirmed` do not hold for a confirmed finding.
        """
        exempt = [
            finding
            for finding in self.findings
            if finding.key in reasons_by_key
            and not (finding.is_confirmed and finding.key in until_confirmed)
        ]
        reasons = {
            finding.describe_as_reason(reasons_by_key[finding.key])
            for finding in exempt
            if not finding.is_confirmed
        }
        audit = replace(self, reasons=tuple(sorted(reasons.union(self.reasons))))
        return audit.drop_findings({finding.key for finding in exempt})


def split_findings(
    findings: Iterable[AuditFinding], reasons: Iterable[str]
) -> tuple[tuple[AuditFinding, ...], tuple[str, ...]]:
    """Sort findings, the nearest first; those that runs contradict become reasons."""
    ordered = sorted(findings, key=lambda finding: finding.nearness)
    unobserved = {
        finding.describe_as_reason(finding._unobserved_reason)
        for finding in ordered
        if not finding.is_observed
    }
    observed = tuple(finding for finding in ordered if finding.is_observed)
    return observed, tuple(sorted(unobserved.union(reasons)))


def judge_kernel(findings: Sequence[AuditFinding], reasons: Collection[str]) -> Verdict:
    kinds = {finding.kind for finding in findings}
    if FindingKind.OVERFLOWS in kinds:
        return Verdict.OVERFLOWS
    if kinds:
        return Verdict.OVERRUNS
    return Verdict.CANNOT_TELL if reasons else Verdict.SAFE
