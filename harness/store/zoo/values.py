"""A stored run of `unfix zoo`: each architecture and kernel family, and which claims hold."""

from __future__ import annotations

import math
from collections import Counter
from enum import StrEnum

import msgspec

from harness.core.outcomes import Verdict, require_word
from harness.store.lane_runs import LaneRun

STOPPED_BY_MEMORY_CHECK = "a memory check stopped it"  # the headline of a claim without a result


class ZooClaim(StrEnum):
    """A claim about an architecture, in the order of the columns."""

    STARTS = "starts"  # it loads, extends three prompts and decodes, with finite logits
    REFERENCE = "equals transformers"
    FORMULA = "equals its formula"  # of a kernel family: each kernel computes what torch does
    BATCH = "batch of one"  # one prompt at a time gives what the batch gives
    CHUNKS = "chunks"  # a prompt in two chunks gives what it gives as a whole
    PREFIX = "cached prefix"  # a prompt behind another request's slots gives what it gives alone
    RECOMPUTE = "recompute"  # a retracted request, extended again, goes on as if it had stayed
    GRAPH = "graph"  # a replayed decode graph gives what eager decoding gives
    RANKS = "several ranks"  # a model spread over ranks gives what one rank gives
    IDLE = "idle ranks"  # data-parallel ranks that begin later or end earlier give it, too
    MEMORY = "memory checks"  # no launch reads or writes out of bounds, overflows or races


FAMILY_CLAIMS = (ZooClaim.STARTS, ZooClaim.FORMULA, ZooClaim.MEMORY)
ARCHITECTURE_CLAIMS = tuple(
    claim for claim in ZooClaim if claim not in (ZooClaim.FORMULA, ZooClaim.RANKS, ZooClaim.IDLE)
)
# Where a model is spread over ranks, that is what is tested; one rank alone is another run.
RANK_CLAIMS = (ZooClaim.STARTS, ZooClaim.REFERENCE, ZooClaim.RANKS, ZooClaim.MEMORY)
IDLE_RANK_CLAIMS = (*RANK_CLAIMS[:-1], ZooClaim.IDLE, ZooClaim.MEMORY)


def list_claims(ranks: str) -> tuple[ZooClaim, ...]:
    """List the claims about a model that is spread so: '', "tp 2", "tp 2, dp attention 2"."""
    if "dp attention" in ranks:
        return IDLE_RANK_CLAIMS
    return RANK_CLAIMS if ranks else ARCHITECTURE_CLAIMS


CLAIM_VERDICTS = (Verdict.HOLDS, Verdict.FAILS, Verdict.KNOWN, Verdict.UNTESTED)


class ClaimResult(msgspec.Struct):
    claim: ZooClaim
    verdict: Verdict
    headline: str = ""
    error: float | None = None  # the largest difference of logits, relative to their largest
    tolerance: float | None = None  # in the same unit
    detail: str = ""

    def __post_init__(self) -> None:
        require_word(self.verdict, CLAIM_VERDICTS)


FEATURE_VERDICTS = (
    *(Verdict.EQUAL, Verdict.DIFFERS, Verdict.KNOWN),
    *(Verdict.REFUSED, Verdict.UNTESTED, Verdict.NA),
)


class FeatureResult(msgspec.Struct):
    """Features of one row together, or one alone, against its plain server."""

    features: list[str]
    verdict: Verdict
    headline: str = ""  # SGLang's words where it refuses them; why they were not tested
    error: float | None = None  # the largest difference of log-probabilities, relative to theirs
    tolerance: float | None = None
    detail: str = ""

    def __post_init__(self) -> None:
        require_word(self.verdict, FEATURE_VERDICTS)


class AnswerSketch(msgspec.Struct):
    """Tensors that a row computed, small enough to keep (`harness/runs/zoo/answer_sketches.py`)."""

    digest: str
    projections: list[float]  # on random signs; none for integers
    largest: float
    count: int  # elements
    tolerance: float  # what rounding changes of an element, relative to the largest

    def describe_difference(self, later: AnswerSketch) -> str:
        """Describe how a later sketch differs beyond rounding; '' if it does not."""
        if self.digest == later.digest:
            return ""
        if not self.projections or (self.count, bool(later.projections)) != (later.count, True):
            return "other integers, or another shape"
        pairs = zip(self.projections, later.projections, strict=True)
        square = sum((old - new) ** 2 for old, new in pairs) / len(self.projections)
        length = math.sqrt(square)
        allowed = self.tolerance * max(self.largest, later.largest) * math.sqrt(self.count)
        if length <= allowed:
            return ""
        mean = length / math.sqrt(self.count) / (self.largest or 1.0)
        return f"moves by {mean:.2g} of the largest number on average"


class ArchitectureResult(msgspec.Struct):
    """One architecture, or one family of kernels, on one release."""

    name: str
    claims: list[ClaimResult] = []
    model_class: str = ""
    absent: str = ""  # why the release has no such architecture; then nothing was run
    kernels: dict[str, int] = {}  # launches of each Triton kernel, `module:name`
    functions: dict[str, list[str]] = {}  # of SGLang that ran, by module
    lines: dict[str, list[int]] = {}  # of the files that a review traces, by module
    answers: dict[str, AnswerSketch] = {}  # the batch's logits, or what each formula's kernel gave
    features: list[FeatureResult] = []  # of each tuple that was to be covered, if any was
    stand_ins: dict[str, int] = {}  # calls of each operator that a stand-in computed
    refused: dict[str, str] = {}  # kernels that no check could run, with the reason
    unanswered: dict[str, int] = {}  # what the device refused by name and SGLang caught
    seconds: float = 0.0
    processor_seconds: float = 0.0  # of these, in which it ran: a busy machine takes longer
    is_family: bool = False  # kernels that no architecture launches, by themselves
    ranks: str = ""  # how the model was spread: "tp 2"

    @property
    def claims_without_result(self) -> list[str]:
        """Name each claim of which nothing is known, unless another claim's failure is why."""
        verdicts = {claim.verdict for claim in self.claims}
        if verdicts & {Verdict.FAILS, Verdict.KNOWN} and not self.starts:
            return []
        tested = {claim.claim for claim in self.claims if claim.verdict is not Verdict.UNTESTED}
        if any(
            claim.claim is ZooClaim.RANKS and claim.verdict in (Verdict.FAILS, Verdict.KNOWN)
            for claim in self.claims
        ):
            tested.add(ZooClaim.IDLE)  # ranks that end at their first batch come to no other
        reasons = {claim.claim: claim.headline for claim in self.claims}
        return [
            f"{claim}: not tested: {reasons.get(claim) or 'it has no result'}"
            for claim in self.claims_to_test
            if claim not in tested and not self._is_stopped_by_memory(claim)
        ]

    @property
    def claims_to_test(self) -> tuple[ZooClaim, ...]:
        return FAMILY_CLAIMS if self.is_family else list_claims(self.ranks)

    def _is_stopped_by_memory(self, claim: ZooClaim) -> bool:
        """Return whether a memory check ended the claim, which is red or known by itself."""
        return any(
            one.claim is claim and one.headline == STOPPED_BY_MEMORY_CHECK for one in self.claims
        )

    @property
    def failures(self) -> list[ClaimResult]:
        return [claim for claim in self.claims if claim.verdict is Verdict.FAILS]

    @property
    def feature_problems(self) -> list[str]:
        """Describe each tuple of features that differs, or of which nothing is known."""
        return [
            f"{' + '.join(result.features)}: {result.verdict}: {result.headline}"
            for result in self.features
            if result.verdict in (Verdict.DIFFERS, Verdict.UNTESTED)
        ]

    @property
    def verdict(self) -> Verdict:
        if self.absent:
            return Verdict.NA
        return Verdict.FAILS if self.failures or self.feature_problems else Verdict.HOLDS

    @property
    def starts(self) -> bool:
        return any(
            claim.claim is ZooClaim.STARTS and claim.verdict is Verdict.HOLDS
            for claim in self.claims
        )


class ZooRun(LaneRun, kw_only=True):
    """One call of `unfix zoo` with its results."""

    card: str
    ranks: str = ""  # how each model is spread: "tp 2, ep 2"
    architectures: list[ArchitectureResult] = msgspec.field(default_factory=list)

    @property
    def results(self) -> list[ArchitectureResult]:
        return self.architectures

    @property
    def present(self) -> list[ArchitectureResult]:
        return [result for result in self.architectures if not result.absent]

    @property
    def models(self) -> list[ArchitectureResult]:
        """Return the architectures that the release has."""
        return [result for result in self.present if not result.is_family]

    @property
    def model_claims(self) -> tuple[ZooClaim, ...]:
        return list_claims(self.ranks)

    @property
    def families(self) -> list[ArchitectureResult]:
        """Return the families of kernels that the release has."""
        return [result for result in self.present if result.is_family]

    @property
    def counts(self) -> dict[str, int]:
        counts = Counter(claim.verdict for result in self.present for claim in result.claims)
        return {verdict.value: counts[verdict] for verdict in CLAIM_VERDICTS if counts[verdict]}

    @property
    def kernels(self) -> dict[str, list[str]]:
        """Return each launched kernel with the architectures that launched it."""
        names: dict[str, list[str]] = {}
        for result in self.architectures:
            for kernel in result.kernels:
                names.setdefault(kernel, []).append(result.name)
        return dict(sorted(names.items()))

    @property
    def summary(self) -> str:
        starting = sum(result.starts for result in self.models)
        counts = ", ".join(f"{count} {verdict}" for verdict, count in self.counts.items())
        return (
            f"{self.release}: {starting} of {len(self.models)} architectures start, "
            f"{len(self.kernels)} kernels; claims: {counts or 'none'}"
        )

    @property
    def problems(self) -> list[str]:
        """Return every reason why the run is not green."""
        problems = [
            f"{result.name}: {claim.claim}: {claim.headline}"
            for result in self.present
            for claim in result.failures
        ]
        problems += [
            f"{result.name}: {problem}"
            for result in self.present
            for problem in result.claims_without_result
        ]
        problems += [
            f"{result.name}: {problem}"
            for result in self.present
            for problem in result.feature_problems
        ]
        problems += super().problems
        if not any(result.starts for result in self.present):
            problems.append("nothing started: nothing is compared")
        return problems
