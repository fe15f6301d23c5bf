"""An audit: a release's place in, every kernel's verdict out; kept until what it read changes."""

from __future__ import annotations

import hashlib
import json
import pickle
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.core import paths
from harness.core.cache import get_or_compute, is_cached
from harness.core.code_digest import digest_code
from harness.core.errors import NotReadyError
from harness.patching.child_environment import SINGLE_THREAD, ChildEnvironment
from harness.releases.managed_releases import CPU_BASE
from harness.runs.audit.exemptions import FindingExemption
from harness.runs.audit.findings import AuditFinding, KernelAudit, KernelVerdict, judge_kernel
from harness.runs.audit.release_files import iterate_sources

ProgressListener = Callable[[str], None]
DEFAULT_LAUNCHES = Path(__file__).with_name(
    "launches.jsonl"
)  # those of the suites, as they noted them
CODE_DIGEST = digest_code("runs")


@dataclass(frozen=True, slots=True)
class ReleaseAudit:
    """All kernels of one release."""

    release: str
    kernels: tuple[KernelAudit, ...]
    limits: str
    targeted_count: int  # kernels by the targets, whether or not they are new
    seconds: float = 0.0
    gpu: dict[str, str] = field(default_factory=dict)  # and versions beside it, if it was run there

    @property
    def findings(self) -> list[AuditFinding]:
        """The nearest to what models come to first."""
        found = {
            (one.kind, one.file, one.line, one.kernel): one
            for kernel in self.kernels
            for one in kernel.findings
        }
        return sorted(found.values(), key=lambda one: (one.nearness, one.file, one.line))

    def count_verdicts(self) -> dict[str, int]:
        return {
            str(verdict): sum(one.verdict is verdict for one in self.kernels)
            for verdict in KernelVerdict
        }

    def apply_exemptions(self, exemptions: Sequence[FindingExemption]) -> ReleaseAudit:
        """Less the findings that somebody lives with, and why."""
        because = {one.key: one.because for one in exemptions}
        unconfirmed = {one.key for one in exemptions if one.unless}
        kernels = tuple(one.apply_exemptions(because, unconfirmed) for one in self.kernels)
        return replace(self, kernels=kernels)


def audit_release(
    location: Path,
    release: str,
    limits: Path,
    targets: Sequence[str],
    jobs: int,
    report: ProgressListener,
    earlier_location: Path | None = None,
    launches: Path = DEFAULT_LAUNCHES,
) -> ReleaseAudit:
    """Of a folder that holds the package, or a wheel; or what is new in it since another one."""
    places = [location] if earlier_location is None else [location, earlier_location]
    digest = hashlib.sha256(CODE_DIGEST.encode())
    digest.update(limits.read_bytes() + b"\0" + launches.read_bytes())
    contents = list(map(_hash_sources, places))
    digest.update("\0".join(contents).encode())
    digest.update("\0".join((*map(str, places), "", *sorted(targets))).encode())
    key = digest.hexdigest()
    if not is_cached("releases", key):
        report(f"reading the kernels of {release}")
    found = get_or_compute(
        "releases",
        key,
        lambda: _run_analysis(places, contents, release, limits, launches, targets, jobs, report),
    )
    return replace(found, release=release)


def _hash_sources(location: Path) -> str:
    digest = hashlib.sha256()
    for path, content in iterate_sources(location):
        digest.update(f"{path}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _run_analysis(
    locations: list[Path],
    source_digests: list[str],
    release: str,
    limits: Path,
    launches: Path,
    targets: Sequence[str],
    jobs: int,
    report: ProgressListener,
) -> ReleaseAudit:
    start = time.monotonic()
    asked = {
        "places": list(map(str, locations)),
        "sources": source_digests,
        "limits": str(limits.resolve()),
        "launches": str(launches.resolve()),
        "targets": list(targets),
        "jobs": jobs,
    }
    environment = ChildEnvironment(SINGLE_THREAD)
    environment.use_checkout()
    log = paths.state_folder() / "audit.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as noise:  # whatever Triton prints of kernels that it refuses
        process = subprocess.Popen(
            [CPU_BASE.python, "-m", "harness.runs.audit.analysis_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=noise,
            env=environment,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(asked).encode())
    process.stdin.close()
    kernels: list[KernelAudit] = []
    many = meant = -1
    with process.stdout as answers:
        for line in answers:
            if line.startswith(b"{"):
                told = json.loads(line)
                many = told["kernels"]
                meant = told["meant"]
                continue
            kernels.append(pickle.loads(bytes.fromhex(line.decode())))
            if len(kernels) % 100 == 0:
                report(f"{len(kernels)} of {many} kernels")
    process.wait()
    if many != len(kernels):
        raise NotReadyError(
            f"the audit of {release} was cut short at {len(kernels)} of {many} kernels: see {log}"
        )
    order = sorted(_judge_helpers(kernels), key=lambda one: (one.module, one.line))
    return ReleaseAudit(release, tuple(order), str(limits), meant, time.monotonic() - start)


def _judge_helpers(kernels: list[KernelAudit]) -> list[KernelAudit]:
    """A function that kernels call is as safe as they are in its lines."""
    named: dict[str, list[KernelAudit]] = {}
    for one in kernels:
        named.setdefault(one.kernel, []).append(one)
    found = [each for one in kernels for each in one.findings]
    return [_judge_helper(one, named, found) if one.helper_of else one for one in kernels]


def _judge_helper(
    helper: KernelAudit, kernels_by_name: dict[str, list[KernelAudit]], findings: list[AuditFinding]
) -> KernelAudit:
    own = [
        each
        for each in findings
        if each.file == helper.file and helper.line <= each.line <= helper.last
    ]
    if own:
        return replace(helper, verdict=judge_kernel(own, ()))
    seen: set[str] = set()
    waiting = helper.helper_of.split(",")
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for caller in kernels_by_name.get(name, ()):
            if caller.helper_of:
                waiting += caller.helper_of.split(",")
            elif caller.verdict is not KernelVerdict.UNKNOWN:
                return replace(helper, verdict=KernelVerdict.SAFE)
    return replace(
        helper, verdict=KernelVerdict.UNKNOWN, reasons=("none of its callers can be told",)
    )
