"""An audit: a release's place in, every kernel's verdict out; kept until what it read changes."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness import paths
from harness.audit.exceptions import Exempt
from harness.audit.findings import Audited, Finding, Verdict, judged
from harness.audit.places import sources
from harness.errors import NotReady
from harness.kernels.kept import is_kept, kept
from harness.releases import engines
from harness.releases.managed import BASE

Say = Callable[[str], None]
LAUNCHES = Path(__file__).with_name("launches.jsonl")  # those of the suites, as they noted them
_CODE = "".join(
    file.read_text()
    for folder in ("audit", "kernels", "native", "checking")
    for file in sorted((paths.PACKAGE / folder).glob("*.py"))
)


@dataclass(frozen=True, slots=True)
class Audit:
    """All kernels of one release."""

    release: str
    kernels: tuple[Audited, ...]
    limits: str
    meant: int  # kernels by the targets, whether or not they are new
    seconds: float = 0.0
    gpu: dict[str, str] = field(default_factory=dict)  # and versions beside it, if it was run there

    @property
    def findings(self) -> list[Finding]:
        """The nearest to what models come to first."""
        found = {
            (one.kind, one.file, one.line, one.kernel): one
            for kernel in self.kernels
            for one in kernel.findings
        }
        return sorted(found.values(), key=lambda one: (one.nearness, one.file, one.line))

    def counted(self) -> dict[str, int]:
        return {
            str(verdict): sum(one.verdict is verdict for one in self.kernels) for verdict in Verdict
        }

    def excepted(self, known: Sequence[Exempt]) -> Audit:
        """Less the findings that somebody lives with, and why."""
        because = {one.key: one.because for one in known}
        unconfirmed = {one.key for one in known if one.unless}
        kernels = tuple(one.excepted(because, unconfirmed) for one in self.kernels)
        return replace(self, kernels=kernels)


def audit(
    place: Path,
    release: str,
    limits: Path,
    targets: Sequence[str],
    jobs: int,
    say: Say,
    before: Path | None = None,
    launches: Path = LAUNCHES,
) -> Audit:
    """Of a folder that holds the package, or a wheel; or what is new in it since another one."""
    places = [place] if before is None else [place, before]
    digest = hashlib.sha256(_CODE.encode())
    digest.update(limits.read_bytes() + b"\0" + launches.read_bytes())
    contents = list(map(_sources, places))
    digest.update("\0".join(contents).encode())
    digest.update("\0".join((*map(str, places), "", *sorted(targets))).encode())
    key = digest.hexdigest()
    if not is_kept("releases", key):
        say(f"reading the kernels of {release}")
    found = kept(
        "releases",
        key,
        lambda: _made(places, contents, release, limits, launches, targets, jobs, say),
    )
    return replace(found, release=release)


def _sources(place: Path) -> str:
    digest = hashlib.sha256()
    for path, content in sources(place):
        digest.update(f"{path}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _made(
    places: list[Path],
    contents: list[str],
    release: str,
    limits: Path,
    launches: Path,
    targets: Sequence[str],
    jobs: int,
    say: Say,
) -> Audit:
    start = time.monotonic()
    asked = {
        "places": list(map(str, places)),
        "sources": contents,
        "limits": str(limits.resolve()),
        "launches": str(launches.resolve()),
        "targets": list(targets),
        "jobs": jobs,
    }
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}
    engines.tell(environment)
    log = paths.state() / "audit.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as noise:  # whatever Triton prints of kernels that it refuses
        process = subprocess.Popen(
            [BASE.python, "-m", "harness.audit.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=noise,
            env=environment,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(asked).encode())
    process.stdin.close()
    kernels: list[Audited] = []
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
                say(f"{len(kernels)} of {many} kernels")
    process.wait()
    if many != len(kernels):
        raise NotReady(
            f"the audit of {release} was cut short at {len(kernels)} of {many} kernels: see {log}"
        )
    order = sorted(_with_helpers(kernels), key=lambda one: (one.module, one.line))
    return Audit(release, tuple(order), str(limits), meant, time.monotonic() - start)


def _with_helpers(kernels: list[Audited]) -> list[Audited]:
    """A function that kernels call is as safe as they are in its lines."""
    named: dict[str, list[Audited]] = {}
    for one in kernels:
        named.setdefault(one.kernel, []).append(one)
    found = [each for one in kernels for each in one.findings]
    return [_helper(one, named, found) if one.helper_of else one for one in kernels]


def _helper(one: Audited, named: dict[str, list[Audited]], found: list[Finding]) -> Audited:
    own = [each for each in found if each.file == one.file and one.line <= each.line <= one.last]
    if own:
        return replace(one, verdict=judged(own, ()))
    seen: set[str] = set()
    waiting = one.helper_of.split(",")
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for caller in named.get(name, ()):
            if caller.helper_of:
                waiting += caller.helper_of.split(",")
            elif caller.verdict is not Verdict.UNTOLD:
                return replace(one, verdict=Verdict.SAFE)
    return replace(one, verdict=Verdict.UNTOLD, reasons=("none of its callers can be told",))
