"""The rank of an audit's findings: what a rehearsal of real deployments reaches or comes near to.

A finding by arithmetic says that a number wraps, and not that a server gets so far. A rehearsal
runs the launches of named deployments at their true size: a line that it stops at is reachable, one
whose addresses take over a quarter of 32 bits is near, and all else is possible.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.runs.audit.findings import AuditFinding
from harness.store.rehearse.values import FindingRank, RehearsalFinding, RehearsalRun

_LineKey = tuple[str, int]  # a kernel's name and a line


@dataclass(frozen=True, slots=True)
class DeploymentFinding:
    """A line of a kernel, with the deployments that reach it or come near to it."""

    rank: FindingRank
    kernel: str
    file: str
    line: int
    text: str
    headline: str
    deployments: tuple[str, ...]
    command: str  # the first deployment's, at the smallest setting that is known


@dataclass(frozen=True, slots=True)
class DeploymentRanks:
    """What a rehearsal found in kernels, the reachable first."""

    run: str  # the rehearsal's id
    deployments: int
    kernels: frozenset[str]  # names of kernels that a deployment launches
    findings: tuple[DeploymentFinding, ...]

    def rank(self, finding: AuditFinding) -> FindingRank:
        for known in self.findings:
            if (known.kernel, known.line) == (finding.kernel, finding.line):
                return known.rank
        return FindingRank.POSSIBLE

    def count(self, rank: FindingRank) -> int:
        return sum(finding.rank is rank for finding in self.findings)

    def count_launched(self, findings: Iterable[AuditFinding]) -> int:
        """Count the findings in kernels that some deployment launches."""
        return sum(finding.kernel in self.kernels for finding in findings)


def make_ranks(run: RehearsalRun) -> DeploymentRanks:
    """Join a rehearsal's findings in kernels by their lines."""
    found: dict[_LineKey, tuple[RehearsalFinding, list[str]]] = {}
    kernels: set[str] = set()
    for deployment in run.deployments:
        kernels |= {name.rpartition(":")[2] for name in deployment.kernels}
        for finding in deployment.findings:
            if not finding.kernel or finding.rank is FindingRank.POSSIBLE:
                continue
            key = (finding.kernel.rpartition(":")[2], finding.line)
            known, names = found.get(key, (finding, []))
            if _precedes(finding, known):
                known = finding
                names.insert(0, deployment.name)
            else:
                names.append(deployment.name)
            found[key] = known, names
    order = list(FindingRank)
    findings = [
        DeploymentFinding(
            finding.rank,
            kernel,
            finding.file,
            line,
            finding.text,
            finding.headline,
            tuple(dict.fromkeys(names)),
            finding.threshold or f"./unfix rehearse {names[0]} --release {run.release}",
        )
        for (kernel, line), (finding, names) in found.items()
    ]
    findings.sort(key=lambda one: (order.index(one.rank), one.kernel, one.line))
    return DeploymentRanks(run.id, len(run.deployments), frozenset(kernels), tuple(findings))


def _precedes(finding: RehearsalFinding, known: RehearsalFinding) -> bool:
    order = list(FindingRank)
    if finding.rank is not known.rank:
        return order.index(finding.rank) < order.index(known.rank)
    return finding.extent > known.extent
