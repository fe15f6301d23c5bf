"""The rank of an audit's findings: what a rehearsal of real deployments reaches or comes near to.

A finding by arithmetic says that a number wraps, and not that a server gets so far. A rehearsal
runs the launches of named deployments at their true size: a line that it stops at is reachable, one
whose addresses take over a quarter of 32 bits is near, and all else is possible.

A line is known by its kernel, with its module, and its text, so a rehearsal of one release ranks
the sources of another, wherever the line stands there. Where a kernel has the text several times,
the number of such lines counts.

Only deployments that started and finished count. A deployment that SGLang refuses, or in which an
error ends a batch early, is named. A deployment that was cut short says nothing of any line, so
its audit is not green.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from harness.runs.audit.findings import AuditFinding
from harness.store.rehearse.values import INT32_LIMIT, FindingRank, RehearsalFinding, RehearsalRun

RankedLine = tuple[str, str, str]  # a kernel's module and name, and the text of a line
# The module of the line's kernel, and the files and lines that have its text, the likeliest first:
LineFinder = Callable[["DeploymentFinding"], tuple[str, list[tuple[str, int]]]]
OVERFLOW = "IntegerOverflow"  # the kind of most findings
OUT_OF_BOUNDS = "OutOfBounds"
_ORDER = {rank: number for number, rank in enumerate(FindingRank)}


@dataclass(frozen=True, slots=True)
class DeploymentFinding:
    """A line of a kernel, with the deployments that reach it or come near to it."""

    rank: FindingRank
    module: str
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
        return self.module, self.kernel, " ".join(self.text.split())

    @property
    def is_overflow(self) -> bool:
        return self.kind == OVERFLOW

    @property
    def is_of_address(self) -> bool:
        """Whether it is what the audit searches for as well, and no race or assertion."""
        return self.kind in (OVERFLOW, OUT_OF_BOUNDS)


@dataclass(frozen=True, slots=True)
class DeploymentRanks:
    """What a rehearsal found in kernels, the reachable first, then the nearest."""

    run: str  # the rehearsal's id
    release: str  # that was rehearsed
    deployments: int  # that started and finished
    kernels: frozenset[tuple[str, str]]  # modules and names of kernels that a deployment launches
    findings: tuple[DeploymentFinding, ...]
    uncounted: tuple[str, ...] = ()  # the other deployments, each with the reason
    is_conclusive: bool = True  # some deployment counts, and none was cut short

    def find(self, finding: AuditFinding) -> DeploymentFinding | None:
        """Find what the rehearsal says of a finding by arithmetic: of its line, or its access.

        A rehearsal names the line that overflows, and of a near address the access.
        """
        text = " ".join(finding.text.split())
        same = [
            known
            for known in self.findings
            if known.is_of_address
            and (known.module, known.kernel) == (finding.module, finding.kernel)
            and (
                (known.key[2], known.line) == (text, finding.line)
                or known.line == finding.access_line
            )
        ]
        same.sort(key=lambda known: known.key[2] != text)
        return same[0] if same else None

    def rank(self, finding: AuditFinding) -> FindingRank:
        known = self.find(finding)
        return FindingRank.POSSIBLE if known is None else known.rank

    def count(self, rank: FindingRank) -> int:
        return sum(finding.rank is rank for finding in self.findings)

    def count_launched(self, findings: Iterable[AuditFinding]) -> int:
        """Count the findings in kernels that some deployment launches."""
        return sum((finding.module, finding.kernel) in self.kernels for finding in findings)

    def keep_lines(self, keeps: Callable[[DeploymentFinding], bool]) -> DeploymentRanks:
        return replace(self, findings=tuple(filter(keeps, self.findings)))

    def keep_kernels(self, kernels: Collection[tuple[str, str]]) -> DeploymentRanks:
        """Keep the lines of these kernels, each a module and a name."""
        return self.keep_lines(lambda finding: (finding.module, finding.kernel) in kernels)

    def drop_known(self, earlier: DeploymentRanks) -> DeploymentRanks:
        """Drop the lines that an earlier release has as often at the same rank or a higher one."""

        def is_new(finding: DeploymentFinding) -> bool:
            modules = self._find_earlier_modules(finding, earlier)
            known = sum(
                earlier._count_lines((module, *finding.key[1:]), finding.rank) for module in modules
            )
            return self._count_lines(finding.key, finding.rank) > known

        return self.keep_lines(is_new)

    def _count_lines(self, key: RankedLine, rank: FindingRank) -> int:
        """Count the lines of a kernel with this text, at this rank or a higher one."""
        return sum(one.key == key and _ORDER[one.rank] <= _ORDER[rank] for one in self.findings)

    def _find_earlier_modules(
        self, finding: DeploymentFinding, earlier: DeploymentRanks
    ) -> set[str]:
        """Find where a kernel was in an earlier release: in its module, else in one it has left."""
        before = {module for module, kernel in earlier.kernels if kernel == finding.kernel}
        now = {module for module, kernel in self.kernels if kernel == finding.kernel}
        return {finding.module} if finding.module in before else before - now

    def locate(self, find_lines: LineFinder, *, drops_missing: bool) -> DeploymentRanks:
        """Give each line a place of its own in some sources; drop those that these have not."""
        located = []
        taken: set[tuple[str, str, str, int]] = set()
        for finding in sorted(self.findings, key=lambda one: one.line):
            module, places = find_lines(finding)
            free = [one for one in places if (module, finding.kernel, *one) not in taken]
            if free:
                file, line = free[0]
                taken.add((module, finding.kernel, file, line))
                located.append(replace(finding, module=module, file=file, line=line))
            elif not drops_missing:
                located.append(finding)
        return replace(self, findings=tuple(sorted(located, key=_make_sort_key)))


def make_ranks(run: RehearsalRun) -> DeploymentRanks:
    """Join a rehearsal's findings in kernels by their lines."""
    found: dict[tuple[tuple[str, str], int], tuple[RehearsalFinding, list[str]]] = {}
    kernels: set[tuple[str, str]] = set()
    for deployment in run.deployments:
        kernels |= {_split_name(name) for name in deployment.kernels}
        for finding in deployment.findings:
            if not finding.kernel or finding.rank is FindingRank.POSSIBLE:
                continue
            kernels.add(_split_name(finding.kernel))
            key = (_split_name(finding.kernel), finding.line)
            known, names = found.get(key, (finding, []))
            if _precedes_finding(finding, known):
                known = finding
                names.insert(0, deployment.name)
            else:
                names.append(deployment.name)
            found[key] = known, names
    findings = [
        DeploymentFinding(
            finding.rank,
            module,
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
        for ((module, kernel), line), (finding, names) in found.items()
    ]
    findings.sort(key=_make_sort_key)
    missing = set(run.planned) - {one.name for one in run.deployments}
    uncounted = {one.name: one.problem for one in run.deployments if one.problem}
    uncounted |= dict.fromkeys(missing, "it was not run")
    count = sum(not one.problem for one in run.deployments)
    return DeploymentRanks(
        run.id,
        run.release,
        count,
        frozenset(kernels),
        tuple(findings),
        tuple(f"{name}: {why}" for name, why in sorted(uncounted.items())),
        count > 0 and not missing and not run.has_cut_deployment,
    )


def _split_name(name: str) -> tuple[str, str]:
    """Split `module:outer.<locals>.kernel` into the module and the kernel's own name."""
    module, _, kernel = name.rpartition(":")
    return module, kernel.rpartition(".")[2]


def _make_sort_key(one: DeploymentFinding) -> tuple[int, int, str, int]:
    return _ORDER[one.rank], -one.extent, one.kernel, one.line


def _precedes_finding(finding: RehearsalFinding, known: RehearsalFinding) -> bool:
    if finding.rank is not known.rank:
        return _ORDER[finding.rank] < _ORDER[known.rank]
    return finding.extent > known.extent
