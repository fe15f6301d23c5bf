"""The audit of a release: a folder or a wheel in, the verdict of every kernel out.

The result is cached on disk until the sources, the limits, the recorded launches, the targets or
the code of the audit change.
"""

from __future__ import annotations

import importlib.util
import json
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.core.cache import get_or_compute, is_cached
from harness.core.code_digest import compute_digest, describe_versions, digest_code
from harness.core.errors import NotReadyError
from harness.core.outcomes import Verdict
from harness.patching.child_environment import SINGLE_THREAD, ChildEnvironment
from harness.releases.managed_releases import CPU_BASE
from harness.runs.audit.deployment_ranks import DeploymentFinding, DeploymentRanks
from harness.runs.audit.exemptions import FindingExemption
from harness.runs.audit.findings import (
    KERNEL_VERDICTS,
    AuditFinding,
    FindingKey,
    KernelAudit,
    judge_kernel,
)
from harness.runs.audit.release_files import ANALYSIS_PACKAGES, iterate_sources
from harness.runs.audit.size_limits import DEFAULT_LIMITS
from harness.store.rehearse.values import FindingRank
from harness.workers.answering_process import get_log, iterate_answers

ProgressListener = Callable[[str], None]
# Launches that the suites' guards made under check, recorded with UNFIX_LAUNCHES.
DEFAULT_LAUNCHES = Path(__file__).with_name("launches.jsonl")
NO_LAUNCHES = Path("/dev/null")  # of a package that is not SGLang
CODE_DIGEST = digest_code("runs")


@dataclass(frozen=True, slots=True)
class AuditRequest:
    """A request for an audit of all kernels of a release, or of those that an earlier one lacks."""

    location: Path
    release: str
    targets: tuple[str, ...] = ()  # kernels, modules, files or folders; empty: all
    jobs: int = 1
    limits: Path = DEFAULT_LIMITS
    launches: Path = DEFAULT_LAUNCHES
    earlier_location: Path | None = None
    python: Path = CPU_BASE.python  # with torch and Triton

    @property
    def locations(self) -> list[Path]:
        return [self.location, *([self.earlier_location] if self.earlier_location else [])]


@dataclass(frozen=True, slots=True)
class ReleaseAudit:
    """The audits of all kernels of one release."""

    release: str
    kernels: tuple[KernelAudit, ...]
    limits: str
    targeted_count: int  # kernels of the targets, new or not
    seconds: float = 0.0
    gpu: dict[str, str] = field(default_factory=dict)  # with versions, if it ran findings
    ranks: DeploymentRanks | None = None  # of a rehearsal of this release, or of the newest one
    unrehearsed: frozenset[FindingKey] = frozenset()  # of lines that no rehearsal of `ranks` ran

    @property
    def findings(self) -> list[AuditFinding]:
        """The findings, each once, those that need the smallest share of a limit first."""
        findings = {
            (finding.kind, *finding.line_key, finding.kernel): finding
            for kernel in self.kernels
            for finding in kernel.findings
        }
        order = list(FindingRank)
        return sorted(
            findings.values(),
            key=lambda each: (
                order.index(self.rank(each)),
                each.key not in self.unrehearsed,
                each.nearness,
                *each.line_key,
            ),
        )

    @property
    def headline(self) -> tuple[DeploymentFinding, ...]:
        """What rehearsed deployments reach or come near to, whether arithmetic finds it or not."""
        return () if self.ranks is None else self.ranks.findings

    @property
    def possible(self) -> list[AuditFinding]:
        """The findings by arithmetic alone, those that count first."""
        return [one for one in self.findings if self.rank(one) is FindingRank.POSSIBLE]

    @property
    def red_findings(self) -> list[AuditFinding]:
        """The findings by arithmetic alone that make the audit red: no rehearsal ran their lines.

        Without any rehearsal these are all. Example: a line that a checkout adds to the newest
        release, whose rehearsal cannot have reached it.
        """
        if self.ranks is None:
            return self.possible
        return [one for one in self.possible if one.key in self.unrehearsed]

    def find_by_arithmetic(self, line: DeploymentFinding) -> AuditFinding | None:
        """Find what arithmetic says of a line that deployments reach or come near to."""
        for finding in self.findings:
            if self.ranks is not None and self.ranks.find(finding) is line:
                return finding
        return None

    @property
    def is_red(self) -> bool:
        """Whether a deployment reaches a finding or is near, or a finding counts by arithmetic.

        A rehearsal of which deployments were cut short, or of which none counts, proves nothing.
        """
        is_conclusive = self.ranks is None or self.ranks.is_conclusive
        return bool(self.headline or self.red_findings) or not is_conclusive

    def rank(self, finding: AuditFinding) -> FindingRank:
        return FindingRank.POSSIBLE if self.ranks is None else self.ranks.rank(finding)

    def count_verdicts(self) -> dict[str, int]:
        return {
            str(verdict): sum(kernel.verdict is verdict for kernel in self.kernels)
            for verdict in KERNEL_VERDICTS
        }

    def apply_exemptions(self, exemptions: Sequence[FindingExemption]) -> ReleaseAudit:
        """Drop the findings that the exemptions accept."""
        reasons = {each.key: each.because for each in exemptions}
        until_confirmed = {each.key for each in exemptions if each.unless}
        kernels = (kernel.apply_exemptions(reasons, until_confirmed) for kernel in self.kernels)
        return replace(self, kernels=tuple(kernels))

    def find_expired(self, exemptions: Sequence[FindingExemption]) -> list[FindingExemption]:
        """Find the exemptions whose kernel exists, but without such a finding."""
        keys = {finding.key for finding in self.findings}
        names = {kernel.kernel for kernel in self.kernels}
        return [each for each in exemptions if each.kernel in names and each.key not in keys]


def audit_release(request: AuditRequest, report: ProgressListener) -> ReleaseAudit:
    source_digests = list(map(digest_sources, request.locations))
    key = compute_key(request, source_digests)
    if not is_cached("releases", key):
        report(f"reading the kernels of {request.release}")
    audit = get_or_compute("releases", key, lambda: _run_analysis(request, source_digests, report))
    return replace(audit, release=request.release)


def compute_key(request: AuditRequest, source_digests: Sequence[str]) -> str:
    """Hash all that an audit depends on."""
    return compute_digest(
        CODE_DIGEST,
        describe_worker(request.python),
        request.limits.read_bytes(),
        request.launches.read_bytes(),
        *source_digests,
        *map(str, request.locations),
        "",
        *sorted(request.targets),
    )


def describe_worker(python: Path = CPU_BASE.python) -> str:
    """Return the Python of the analysis, and the versions of what it stands on there."""
    base = CPU_BASE.site_packages
    folders = [base] if base and python == CPU_BASE.python else list(map(Path, sys.path))
    return f"{python.resolve()} {describe_versions(ANALYSIS_PACKAGES, folders)}"


def find_any_python() -> Path:
    """Find a Python that reads the kernels of any package: this one, or that of the releases."""
    if all(map(importlib.util.find_spec, ANALYSIS_PACKAGES)):
        return Path(sys.executable)
    if CPU_BASE.is_current():
        return CPU_BASE.python
    raise NotReadyError(
        "reading kernels needs torch and Triton, which this Python does not have: `pip install "
        "'unfix[sanitizer]'` where the package's tests run, and audit there"
    )


def digest_sources(location: Path) -> str:
    return compute_digest(*(part for file in iterate_sources(location) for part in file))


def _run_analysis(
    request: AuditRequest, source_digests: list[str], report: ProgressListener
) -> ReleaseAudit:
    start = time.monotonic()
    data = {
        "locations": list(map(str, request.locations)),
        "source_digests": source_digests,
        "limits": str(request.limits.resolve()),
        "launches": str(request.launches.resolve()),
        "targets": request.targets,
        "jobs": request.jobs,
    }
    kernels: list[KernelAudit] = []
    kernel_count = targeted_count = -1
    environment = ChildEnvironment(SINGLE_THREAD)
    environment.use_checkout()
    worker = request.python, "harness.runs.audit.analysis_worker"
    for line in iterate_answers(*worker, json.dumps(data).encode(), environment):
        if line.startswith(b"{"):
            counts = json.loads(line)
            kernel_count, targeted_count = counts["kernels"], counts["targeted"]
            continue
        kernels.append(pickle.loads(bytes.fromhex(line.decode())))
        if len(kernels) % 100 == 0:
            report(f"{len(kernels)} of {kernel_count} kernels")
    if kernel_count != len(kernels):
        raise NotReadyError(
            f"the audit of {request.release} was cut short at {len(kernels)} of {kernel_count} "
            f"kernels: see {get_log()}"
        )
    kernels = sorted(_judge_helpers(kernels), key=lambda kernel: (kernel.module, kernel.line))
    seconds = time.monotonic() - start
    return ReleaseAudit(
        request.release, tuple(kernels), str(request.limits), targeted_count, seconds
    )


def _judge_helpers(kernels: list[KernelAudit]) -> list[KernelAudit]:
    """Judge functions that kernels call: by the findings in their lines, else by their callers."""
    kernels_by_name: dict[str, list[KernelAudit]] = {}
    for kernel in kernels:
        kernels_by_name.setdefault(kernel.kernel, []).append(kernel)
    findings = [finding for kernel in kernels for finding in kernel.findings]
    return [
        _judge_helper(kernel, kernels_by_name, findings) if kernel.helper_of else kernel
        for kernel in kernels
    ]


def _judge_helper(
    helper: KernelAudit, kernels_by_name: dict[str, list[KernelAudit]], findings: list[AuditFinding]
) -> KernelAudit:
    own = [
        finding
        for finding in findings
        if finding.file == helper.file and helper.line <= finding.line <= helper.last
    ]
    if own:
        return replace(helper, verdict=judge_kernel(own, ()))
    seen: set[str] = set()
    pending = helper.helper_of.split(",")
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        for caller in kernels_by_name.get(name, ()):
            if caller.helper_of:
                pending += caller.helper_of.split(",")
            elif caller.verdict is not Verdict.CANNOT_TELL:
                return replace(helper, verdict=Verdict.SAFE)
    reasons = ("the audit cannot tell for any of its callers",)
    return replace(helper, verdict=Verdict.CANNOT_TELL, reasons=reasons)
