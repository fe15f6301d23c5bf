"""The architectures of the zoo that run changed code, and what their claims came to."""

from __future__ import annotations

from collections.abc import Sequence

from harness.kernels.triton import recorded_reach
from harness.runs.audit.release_audit import DEFAULT_LAUNCHES
from harness.runs.pr.source_change import SourceChange
from harness.runs.zoo.architecture import read_architectures
from harness.store.pr.values import ClaimChange
from harness.store.zoo.values import ClaimVerdict, ZooRun

_MODELS = "sglang.srt.models."
_LAUNCHER = "zoo "


def find_touched(change: SourceChange, kernels: Sequence[str]) -> list[str]:
    """Find the architectures of changed model files, then those that launched changed kernels."""
    known = {one.name: one for one in read_architectures([])}
    models = {name.removeprefix(_MODELS) for name in change.modules if name.startswith(_MODELS)}
    names = [
        name for name, one in known.items() if {name, one.model_type} & models
    ]  # SGLang's file of a model has its name in transformers
    launched: dict[str, int] = {}
    for reach in recorded_reach.read_reach(DEFAULT_LAUNCHES):
        modules = {path.removesuffix(".py").replace("/", ".") for path in reach.lines}
        is_changed = reach.kernel in kernels or not modules.isdisjoint(change.modules)
        for by in reach.by if is_changed else ():
            if by.startswith(_LAUNCHER):
                name = by.removeprefix(_LAUNCHER)
                launched[name] = launched.get(name, 0) + 1
    ordered = sorted(launched, key=lambda name: (-launched[name], name))
    return list(dict.fromkeys([*names, *(name for name in ordered if name in known)]))


def list_failing(run: ZooRun) -> list[str]:
    return [one.name for one in run.present if one.failures]


def compare_claims(before: ZooRun | None, after: ZooRun) -> list[ClaimChange]:
    """Pair the claims of both ends; an end that was not run has held."""
    earlier = {
        (one.name, claim.claim): claim.verdict.value
        for one in (before.present if before is not None else ())
        for claim in one.claims
    }
    default = ClaimVerdict.HOLDS.value if before is None else ClaimVerdict.UNTESTED.value
    return [
        ClaimChange(
            architecture=one.name,
            claim=claim.claim.value,
            before=earlier.get((one.name, claim.claim), default),
            after=claim.verdict.value,
            headline=claim.headline,
        )
        for one in after.present
        for claim in one.claims
    ]
