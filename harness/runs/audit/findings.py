"""What an audit says: values, with nothing that computes them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

CONFIRMED = "confirmed"
CONFIRMED_IN_PART = f"{CONFIRMED}: some programs of the grid alone"  # on a GPU
NO_TIME = "there was no time left for it"
PASSED_AT_THRESHOLD = "at it passes"  # a whole launch
FindingKey = tuple[str, str, str]  # what it does, kernel, line
# Of what wraps by arithmetic alone:
NEVER_EXECUTED = "not run: no launch that is tried comes to this line"
BEYOND_MEMORY = "not run: the launches that were tried go more than 512 GiB past a tensor"
NEEDS_INT64 = "not run: a number of its launch takes 64 bits, and it is read with 32"


class FindingKind(StrEnum):
    OVERFLOWS = "wraps"
    OVERRUNS = "overruns"


class KernelVerdict(StrEnum):
    SAFE = "safe"
    OVERFLOWS = "wraps"
    OVERRUNS = "overruns"
    UNKNOWN = "cannot tell"


@dataclass(frozen=True, slots=True)
class ModelThreshold:
    """From where on a model's launch wraps; 0 where it does not within the limits."""

    model: str
    threshold: int


@dataclass(frozen=True, slots=True)
class LaunchArgument:
    """What a launch gives one parameter."""

    name: str
    kind: str  # as Triton writes it; "constexpr" where it is a constant
    value: Any = None  # of a constant, as records have it, or a number
    elements: int = 0  # of a tensor, that the launch may come to
    holds: tuple[int, int] | None = None  # what a tensor holds, in turn


@dataclass(frozen=True, slots=True)
class TrialLaunch:
    """One launch of a kernel, to be made anywhere."""

    grid: tuple[int, ...]
    program: tuple[int, ...]  # the one that is seen to, where not all can run
    arguments: tuple[LaunchArgument, ...]


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One line of one kernel whose integer wraps, or which goes past a tensor."""

    kernel: str
    module: str
    file: str
    line: int
    text: str
    element: str  # the type that is too narrow, or the tensor that is too small
    access: str  # what goes through that address: load, store, …
    access_line: int
    quantity: str  # what grows
    threshold: int
    largest: int  # of what grows, as the limits file has it
    shape: str  # the rest of the condition, in the caller's words
    grows: str  # what grows, in the caller's words
    value: int  # of that, at the threshold
    model: str  # whose shape it is
    reaches: tuple[ModelThreshold, ...]
    arithmetic: str
    launched: str  # the host's line, or nothing
    confirmed: str = ""  # "confirmed", "confirmed on a …", or "not run: …"
    since: str = ""
    setting: str = ""  # what of a server has to let it grow that far
    kind: FindingKind = FindingKind.OVERFLOWS
    constants: tuple[str, ...] = ()  # that it was read with, and who says so
    trials: tuple[TrialLaunch, ...] = ()  # one below the threshold, and at it
    on_gpu: str = ""  # which it was run on, and what of it, or why that does not confirm it

    @property
    def is_confirmed(self) -> bool:
        return self.confirmed.startswith(CONFIRMED)

    @property
    def nearness(self) -> float:
        """How much of the limit it takes: the less, the nearer."""
        return self.threshold / self.largest

    @property
    def is_observed(self) -> bool:
        """Or not run at all; and not by arithmetic alone, where running was tried."""
        return not self._unobserved_reason

    @property
    def _unobserved_reason(self) -> str:
        """What running showed where arithmetic alone says that it wraps."""
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
        """The same in another release, wherever it moved there."""
        return self.kind, self.kernel, " ".join(self.text.split())

    @property
    def condition(self) -> str:
        first = f"{self.shape}: " if self.shape else ""
        if self.kind is FindingKind.OVERFLOWS:
            return f"{first}from {self.grows} = {self.value:,} on"
        return f"{first}at {self.grows} = {self.value:,}" if self.grows else f"at {self.shape}"


@dataclass(frozen=True, slots=True)
class KernelAudit:
    """One kernel."""

    kernel: str
    module: str
    file: str
    line: int
    verdict: KernelVerdict
    accesses: int
    findings: tuple[AuditFinding, ...] = ()
    reasons: tuple[str, ...] = ()  # why it cannot be told
    helper_of: str = ""  # where it is a part of others
    last: int = 0  # its last line, of a helper

    def drop_findings(self, keys: Collection[FindingKey]) -> KernelAudit:
        """Less the findings of these keys."""
        left = tuple(one for one in self.findings if one.key not in keys)
        verdict = self.verdict
        if self.findings:
            verdict = judge_kernel(left, self.reasons)
        return replace(self, findings=left, verdict=verdict)

    def apply_exemptions(
        self, reasons_by_key: Mapping[FindingKey, str], until_confirmed: Collection[FindingKey] = ()
    ) -> KernelAudit:
        """Findings that somebody has looked at are reasons: nothing is proven of them.

        `unconfirmed`: those of them that stand once they are confirmed.
        """
        told = [one for one in self.findings if one.is_confirmed and one.key in until_confirmed]
        known = [one for one in self.findings if one.key in reasons_by_key and one not in told]
        reasons = {
            f"line {one.line} wraps by arithmetic ({one.condition}); {reasons_by_key[one.key]}"
            for one in known
            if not one.is_confirmed
        }
        found = replace(self, reasons=tuple(sorted(reasons.union(self.reasons))))
        return found.drop_findings({one.key for one in known})


def split_findings(
    findings: Iterable[AuditFinding], reasons: Iterable[str]
) -> tuple[tuple[AuditFinding, ...], tuple[str, ...]]:
    """Those that are told, the nearest first; what is arithmetic alone is a reason instead."""
    found = sorted(findings, key=lambda one: one.nearness)
    words = {
        f"line {one.line} wraps by arithmetic ({one.condition}); {one._unobserved_reason}"
        for one in found
        if not one.is_observed
    }
    return tuple(one for one in found if one.is_observed), tuple(sorted(words.union(reasons)))


def judge_kernel(findings: Sequence[AuditFinding], reasons: Collection[str]) -> KernelVerdict:
    """What is said of a kernel; that it wraps before all else."""
    kinds = {one.kind for one in findings}
    if kinds:
        return KernelVerdict.OVERFLOWS if FindingKind.OVERFLOWS in kinds else KernelVerdict.OVERRUNS
    return KernelVerdict.UNKNOWN if reasons else KernelVerdict.SAFE
