"""A stored rehearsal: each deployment with its memory, its launches and what checks found."""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

import msgspec

from harness.core.outcomes import Verdict
from harness.store.lane_runs import LaneRun

INT32_LIMIT = 1 << 31
NEAR_FACTOR = 4  # a finding within this factor of a deployment is near


class UncheckedCause(StrEnum):
    """Why no check runs the calls of an operator."""

    UNKNOWN = ""  # of a record that does not say
    NO_SOURCE = "nothing builds its package"
    NO_TOOLKIT = "no CUDA toolkit"
    NO_LOADER = "its release builds modules in another way"
    NOT_PREPARED = "this process builds no modules"
    KEYWORDS = "called by keyword"
    NOT_BUILT = "its module is not built"
    REFUSED = "a checker refuses it"


class FindingRank(StrEnum):
    """How far a finding is from a deployment that is named."""

    REACHABLE = "reachable"  # the deployment does it
    NEAR = "near"  # a 32-bit integer is within four times of its limit
    POSSIBLE = "possible"  # by arithmetic alone


class RehearsedLaunch(msgspec.Struct):
    """One distinct launch: a kernel with its grid and arguments."""

    kernel: str  # module:name
    phase: str
    grid: tuple[int, int, int]
    arguments: dict[str, str]
    count: int = 1  # with each layer that launches so and passed its input on
    programs: int = 0  # that ran under check
    refusal: str = ""  # why no check could run it
    extent: int = 0  # the largest 32-bit integer on the way into an address
    extent_file: str = ""
    extent_line: int = 0
    extent_text: str = ""
    fits: bool = True  # all that its batch had allocated by then fits on the card

    def note_extent(self, extent: int, file: str, line: int) -> None:
        """Note a line whose address has a larger 32-bit integer than all before."""
        self.extent, self.extent_line = extent, line
        self.extent_file = "/".join(Path(file).parts[-3:])
        self.extent_text = linecache.getline(file, line).strip()

    @property
    def kernel_name(self) -> str:
        """The kernel without its module, which moves from release to release."""
        return self.kernel.rpartition(":")[2]

    @property
    def nearness(self) -> float:
        """The largest 32-bit integer in an address, as a share of what 32 bits hold."""
        return self.extent / INT32_LIMIT


class RehearsalFinding(msgspec.Struct):
    """One line of a kernel, or of SGLang, at which a deployment goes wrong."""

    kind: str  # IntegerOverflow, OutOfBounds, OutOfMemory, …
    phase: str
    kernel: str  # empty for a finding outside of kernels
    headline: str
    file: str = ""
    line: int = 0
    text: str = ""
    detail: str = ""
    count: int = 1  # how many distinct launches show it
    rank: FindingRank = FindingRank.REACHABLE
    threshold: str = ""  # the smallest setting at which it begins, as a command
    extent: int = 0  # of a near one: the largest 32-bit integer on the way into an address
    fits: bool = True  # all that its batch had allocated by then fits on the card
    points: list[tuple[int, float]] = []  # values of the setting, with the share of the limit
    # Of the pool: the fewest slots beside which the whole batch shows it, as a command; and pools,
    # in slots, with the value of the batch's setting at which it begins beside each.
    pool_threshold: str = ""
    pool_points: list[tuple[int, int]] = []

    @property
    def key(self) -> tuple[str, str, str]:
        return self.kind, self.kernel, self.text or self.headline


class RehearsedPhase(msgspec.Struct):
    """One batch: what it was, and the memory it took."""

    name: str
    described: str  # "4,096 requests of 1,505 tokens"
    peak: int = 0  # bytes on the card at its most
    failure: str = ""
    detail: str = ""
    seconds: float = 0.0
    layers: int = 0  # calls of layers of the model: two of each in a batch that runs it twice
    passed_layers: int = 0  # of these calls, those that launch as an earlier one and did not run


class UncheckedOperator(msgspec.Struct):
    """An operator of CUDA code: its calls are counted, and nothing checks them."""

    name: str
    calls: int
    reason: str = ""  # of a checker or a compiler
    cause: UncheckedCause = UncheckedCause.UNKNOWN


def merge_unchecked(operators: Iterable[UncheckedOperator]) -> list[UncheckedOperator]:
    """Add up the calls by operator, cause and reason, the most calls first."""
    calls: Counter[tuple[str, str, UncheckedCause]] = Counter()
    for one in operators:
        calls[one.name, one.reason, one.cause] += one.calls
    return [
        UncheckedOperator(name, count, reason, cause)
        for (name, reason, cause), count in calls.most_common()
    ]


class DeploymentResult(msgspec.Struct):
    """One deployment on one release."""

    name: str
    model: str
    card: str
    cards: int
    arguments: list[str] = []
    refusal: str = ""  # why SGLang does not start it
    detail: str = ""
    settings: dict[str, int] = {}  # chunk, requests, context, slots, page
    memory: dict[str, int] = {}  # bytes by part
    card_memory: int = 0
    slot_bytes: float = 0.0  # of the pools, that grow with their slots
    phases: list[RehearsedPhase] = []
    launches: list[RehearsedLaunch] = []
    findings: list[RehearsalFinding] = []
    functions: dict[str, list[str]] = {}  # of SGLang that ran, by module
    lines: dict[str, list[int]] = {}  # of the files that a review traces, by module
    operators: list[UncheckedOperator] = []
    calls: dict[str, int] = {}  # of all CUDA operators, checked and not, by name
    resident: int = 0  # bytes that the rehearsal itself took of this machine
    seconds: float = 0.0
    processor_seconds: float = 0.0  # of these, in which it ran: a busy machine takes longer

    def measure_slot(self) -> float:
        """Return the bytes of a slot; a run that has not measured them has a share of the pools."""
        return self.slot_bytes or self.memory["pools"] / self.settings["slots"]

    @property
    def kernels(self) -> dict[str, RehearsedLaunch]:
        """Return each kernel with its launch that comes nearest to 2^31."""
        nearest: dict[str, RehearsedLaunch] = {}
        for launch in self.launches:
            known = nearest.get(launch.kernel)
            if known is None or launch.extent > known.extent:
                nearest[launch.kernel] = launch
        return dict(sorted(nearest.items(), key=lambda item: -item[1].extent))

    @property
    def launch_count(self) -> int:
        """The launches of its batches; those of layers that passed their input on are not made."""
        return sum(launch.count for launch in self.launches)

    @property
    def operator_calls(self) -> dict[str, int]:
        """The calls of CUDA operators by name; of an older record those that no check ran."""
        return self.calls or {
            name: sum(one.calls for one in self.operators if one.name == name)
            for name in dict.fromkeys(one.name for one in self.operators)
        }

    @property
    def layer_calls(self) -> int:
        return sum(phase.layers for phase in self.phases)

    @property
    def passed_layers(self) -> int:
        """Calls of layers that did not run: they launch as an earlier one, which is counted."""
        return sum(phase.passed_layers for phase in self.phases)

    @property
    def unchecked_calls(self) -> list[UncheckedOperator]:
        """Launches that no check ran: of CUDA operators, and of kernels that are refused."""
        refused = [
            UncheckedOperator(launch.kernel, launch.count, launch.refusal, UncheckedCause.REFUSED)
            for launch in self.launches
            if launch.refusal
        ]
        return merge_unchecked([*self.operators, *refused])

    @property
    def unchecked_launches(self) -> int:
        return sum(one.calls for one in self.unchecked_calls)

    @property
    def peak(self) -> int:
        return max((phase.peak for phase in self.phases), default=sum(self.memory.values()))

    @property
    def verdict(self) -> Verdict:
        if self.refusal:
            return Verdict.REFUSED
        return Verdict.FAILS if self.reachable else Verdict.HOLDS

    @property
    def is_cut(self) -> bool:
        """Whether the process ended before it had a result: by the limit of time, or a signal.

        The process itself stores the card's memory before SGLang may refuse anything.
        """
        return bool(self.refusal) and not self.card_memory

    @property
    def problem(self) -> str:
        """Why the deployment did not start and finish; empty if it did."""
        if self.refusal:
            return self.refusal if self.is_cut else f"SGLang refuses it: {self.refusal}"
        early = [f"{one.name} ended early: {one.failure}" for one in self.phases if one.failure]
        return "; ".join(early)

    @property
    def reachable(self) -> list[RehearsalFinding]:
        return [one for one in self.findings if one.rank is FindingRank.REACHABLE]

    @property
    def near(self) -> list[RehearsalFinding]:
        return [one for one in self.findings if one.rank is FindingRank.NEAR]


class DeploymentChange(msgspec.Struct):
    """One number of a deployment in two releases."""

    deployment: str
    what: str  # "slots", "memory of pools", "kernel", "nearness of _fwd_kernel", "near finding …"
    before: str
    after: str
    is_worse: bool = False  # memory grew, a kernel got nearer to its limit, a new finding
    is_broken: bool = False  # a server fails there now: no start, an error, a reachable finding


class RehearsalRun(LaneRun, kw_only=True):
    """One call of `unfix rehearse` with its results."""

    deployments: list[DeploymentResult] = msgspec.field(default_factory=list)
    has_thresholds: bool = True  # the smallest setting of each finding was searched

    @property
    def results(self) -> list[DeploymentResult]:
        return self.deployments

    @property
    def has_cut_deployment(self) -> bool:
        return any(one.is_cut for one in self.deployments)

    @property
    def summary(self) -> str:
        counts = self.counts
        return (
            f"{self.release}: {len(self.deployments)} deployments, {counts['kernels']} kernels, "
            f"{counts['reachable']} reachable and {counts['near']} near findings"
        )

    @property
    def counts(self) -> dict[str, int]:
        return {
            "reachable": len({f.key for one in self.deployments for f in one.reachable}),
            "near": len({f.key for one in self.deployments for f in one.near}),
            "refused": sum(bool(one.refusal) for one in self.deployments),
            "kernels": len({kernel for one in self.deployments for kernel in one.kernels}),
            "launches": sum(one.launch_count for one in self.deployments),
            "layer calls": sum(one.layer_calls for one in self.deployments),
            "passed layers": sum(one.passed_layers for one in self.deployments),
            "not checked": sum(one.unchecked_launches for one in self.deployments),
            "calls": sum(call.calls for one in self.deployments for call in one.operators),
        }

    @property
    def unchecked_calls(self) -> list[UncheckedOperator]:
        """What no check ran in all deployments, the most calls first."""
        return merge_unchecked(call for one in self.deployments for call in one.unchecked_calls)

    @property
    def problems(self) -> list[str]:
        """Return every reason why the run is not green."""
        problems = [
            f"{one.name}: {finding.phase}: {finding.headline}"
            for one in self.deployments
            for finding in one.reachable
        ]
        problems += [
            f"{one.name} does not start: {one.refusal}" for one in self.deployments if one.refusal
        ]
        problems += [
            f"{one.name}: {phase.name} ended early: {phase.failure}"
            for one in self.deployments
            for phase in one.phases
            if phase.failure
        ]
        return problems + super().problems
