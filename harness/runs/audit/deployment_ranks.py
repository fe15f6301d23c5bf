"""The rank of an audit's findings: what a rehearsal of real deployments reaches or comes near to.

A finding by arithmetic says that a number wraps, and not that a server gets so far. A rehearsal
runs the launches of named deployments at their true size: a line that it stops at is reachable, one
whose addresses take over a quarter of 32 bits is near, and all else is possible.

A line is known by its kernel and its text, so a rehearsal of one release ranks the sources of
another, wherever the line stands there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from harness.runs.audit.findings import AuditFinding
from harness.store.rehearse.values import INT32_LIMIT, FindingRank, RehearsalFinding, RehearsalRun

RankedLine = tuple[str, str]  # a kernel's name and the text of a line
LineFinder = Callable[["DeploymentFinding"], tuple[str, int] | None]  # its file and line
OVERFLOW = "IntegerOverflow"  # the kind of most findings
_ORDER = {rank: number for number, rank in enumerate(FindingRank)}


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
    kind: str  # IntegerOverflow, OutOfBounds, …
    extent: int  # the largest 32-bit integer on the way into its address; 2^31 at the most

    @property
    def key(self) -> RankedLine:
        return self.kernel, " ".join(self.text.split())

    @property
    def is_overflow(self) -> bool:
        return self.kind == OVERFLOW


@dataclass(frozen=True, slots=True)
class DeploymentRanks:
    """What a rehearsal found in kernels, the reachable first, then the nearest."""

    run: str  # the rehearsal's id
    release: str  # that was rehearsed
    deployments: int
    kernels: frozenset[str]  # names of kernels that a deployment launches
    findings: tuple[DeploymentFinding, ...]

    def find(self, finding: AuditFinding) -> DeploymentFinding | None:
        """Find what the rehearsal says of a finding by arithmetic: of its line, or its access.

        A rehearsal names the line that overflows, and of a near address the access.
        """
        text = " ".join(finding.text.split())
        same = [
            known
            for known in self.findings
            if known.kernel == finding.kernel
            and (known.key[1] == text or known.line == finding.access_line)
        ]
        same.sort(key=lambda known: known.line not in (finding.line, finding.access_line))
        return same[0] if same else None

    def rank(self, finding: AuditFinding) -> FindingRank:
        known = self.find(finding)
        return FindingRank.POSSIBLE if known is None else known.rank

    def count(self, rank: FindingRank) -> int:
        return sum(finding.rank is rank for finding in self.findings)

    def count_launched(self, findings: Iterable[AuditFinding]) -> int:
        """Count the findings in kernels that some deployment launches."""
        return sum(finding.kernel in self.kernels for finding in findings)

    def keep_kernels(self, names: Collection[str]) -> DeploymentRanks:
        findings = tuple(finding for finding in self.findings if finding.kernel in names)
        return replace(self, findings=findings)

    def drop_known(self, earlier: DeploymentRanks) -> DeploymentRanks:
        """Drop the lines that an earlier release has at the same rank or a higher one."""
        known = {finding.key: _ORDER[finding.rank] for finding in reversed(earlier.findings)}
        findings = tuple(
            finding
            for finding in self.findings
            if _ORDER[finding.rank] < known.get(finding.key, len(_ORDER))
        )
        return replace(self, findings=findings)

    def locate(self, find_line: LineFinder, *, drops_missing: bool) -> DeploymentRanks:
        """Give each line its place in some sources, and drop those that these have not."""
        located = []
        for finding in self.findings:
            if place := find_line(finding):
                located.append(replace(finding, file=place[0], line=place[1]))
            elif not drops_missing:
                located.append(finding)
        return replace(self, findings=tuple(located))


def make_ranks(run: RehearsalRun) -> DeploymentRanks:
    """Join a rehearsal's findings in kernels by their lines."""
    found: dict[tuple[str, int], tuple[RehearsalFinding, list[str]]] = {}
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
            finding.kind,
            finding.extent or INT32_LIMIT,
        )
        for (kernel, line), (finding, names) in found.items()
    ]
    findings.sort(key=lambda one: (_ORDER[one.rank], -one.extent, one.kernel, one.line))
    return DeploymentRanks(
        run.id, run.release, len(run.deployments), frozenset(kernels), tuple(findings)
    )


def _precedes(finding: RehearsalFinding, known: RehearsalFinding) -> bool:
    if finding.rank is not known.rank:
        return _ORDER[finding.rank] < _ORDER[known.rank]
    return finding.extent > known.extent
