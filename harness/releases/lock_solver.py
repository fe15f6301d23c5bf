"""Solves the lock of a release that has none, from the nearest lock that we have.

A lock lists the packages of a release whose versions differ from the shared base's. Example: a
release pins transformers 5.20.0, and everything else as 0.5.23 does. Its lock is that of 0.5.23
with this version, and with a version of tokenizers that transformers 5.20.0 accepts if that of
0.5.23 is not one.

Invariant: every pin of the release holds in its environment, except those of `BASE_ONLY`, which
all releases share, and of the packages in `locks/left-out.txt`, which no environment has.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from harness.core.errors import NotReadyError
from harness.releases import managed_releases, pack_installer, pins
from harness.releases.managed_releases import LOCKS_FOLDER, Release

RunPip = Callable[[list[str]], None]
# The base's versions serve all releases, whatever they pin.
BASE_ONLY = ("torch", "torchvision", "triton", "apache-tvm-ffi")
MAX_ROUNDS = 12


@dataclass
class SolvedLock:
    """The lock of a release, the release of the lock it was made from, and the differences."""

    release: str
    version: str
    nearest: str
    packages: dict[str, str]  # those that differ from the base
    wheel_digest: str  # another wheel under the same name is another environment
    changes: list[str] = field(default_factory=list)
    shared: list[str] = field(default_factory=list)  # pins that the base does not follow

    def describe(self) -> list[str]:
        fits = f"the lock of SGLang {self.nearest} fits {self.release}"
        if self.changes:
            fits = (
                f"no lock of ours fits SGLang {self.release}: solved from that of {self.nearest}, "
                f"with {', '.join(self.changes)}"
            )
        shared = [f"the shared base differs from its pins: {', '.join(self.shared)}"]
        return [fits, *(shared if self.shared else ())]

    def render(self) -> str:
        lines = [f"# {line}." for line in self.describe()]
        lines.append(f"# sha256 of the wheel: {self.wheel_digest}")
        own = self.packages | {"sglang": self.version}
        return "\n".join([*lines, *(f"{name}=={own[name]}" for name in sorted(own))]) + "\n"


def solve_lock(release: Release, wheel: Path, run_pip: RunPip) -> SolvedLock:
    version = wheel.name.split("-")[1]
    required = [
        one
        for one in pins.read_wheel_requirements(wheel)
        if canonicalize_name(one.name) not in read_left_out()
    ]
    nearest = find_nearest_lock(required, version)
    base = pins.read_lock(release.base.lock_file)
    packages = pins.read_lock(nearest.lock_file)
    packages.pop("sglang")
    solved = SolvedLock(
        release.name, version, nearest.name, packages, pack_installer.compute_digest(wheel)
    )
    solved.shared = [
        f"{name} {base[name]} for {one.specifier}"
        for one in required
        if (name := canonicalize_name(one.name)) in BASE_ONLY and not _holds_requirement(one, base)
    ]
    _satisfy_requirements(solved, required, base, str(release.base.python), run_pip)
    return solved


def find_nearest_lock(required: Sequence[Requirement], version: str | None) -> Release:
    """Find the release whose lock needs the fewest changes, and of those the nearest version."""
    base = pins.read_lock(managed_releases.CPU_BASE.lock_file)
    followed = [one for one in required if canonicalize_name(one.name) not in BASE_ONLY]

    def measure(release: Release) -> tuple[int, int, int]:
        packages = base | pins.read_lock(release.lock_file)
        changed = sum(not _holds_requirement(one, packages) for one in followed)
        parts, others = Version(version or release.name), Version(release.name)
        between = abs((parts.minor - others.minor) * 1000 + parts.micro - others.micro)
        return changed, between, -others.micro

    return min(managed_releases.list_releases(), key=measure)


def read_left_out() -> set[str]:
    text = (LOCKS_FOLDER / "left-out.txt").read_text()
    return {line for line in text.splitlines() if line and not line.startswith("#")}


def _satisfy_requirements(
    solved: SolvedLock,
    required: Sequence[Requirement],
    base: dict[str, str],
    python: str,
    run_pip: RunPip,
) -> None:
    """Add versions until SGLang's requirements hold, and those of every package that changed."""
    before = base | solved.packages
    pinned = {canonicalize_name(one.name) for one in required if "==" in str(one.specifier)}
    specifiers = {canonicalize_name(one.name): one.specifier for one in required}
    unmet = [one for one in required if not _holds_requirement(one, before)]
    for _ in range(MAX_ROUNDS):
        changed = {name for one in unmet if (name := canonicalize_name(one.name)) not in BASE_ONLY}
        if not changed:
            break
        wanted = []
        for name in sorted(changed):
            specifier = specifiers[name] = specifiers.get(name, SpecifierSet())
            if name in base and specifier.contains(base[name], prereleases=True):
                solved.packages[name] = base[name]
            else:
                wanted.append(f"{name}{specifier}")
        unmet = []
        resolved = _resolve_versions(wanted, python, run_pip) if wanted else []
        solved.packages |= {name: version for name, version, _ in resolved}
        packages = base | solved.packages
        for _, _, texts in resolved:
            for one in pins.select_applicable(texts):
                # A pin of SGLang counts for more than what another package requires.
                required_name = canonicalize_name(one.name)
                if not _holds_requirement(one, packages) and required_name not in pinned:
                    specifier = specifiers.get(required_name, SpecifierSet())
                    specifiers[required_name] = specifier & one.specifier
                    unmet.append(one)
    else:
        raise NotReadyError(
            f"no versions were found that all fit SGLang {solved.release}: "
            f"{', '.join(map(str, unmet))} is still unmet after {MAX_ROUNDS} rounds"
        )
    for package, version in sorted((base | solved.packages).items()):
        if before.get(package) != version:
            earlier = f" (was {before[package]})" if package in before else " (new)"
            solved.changes.append(f"{package} {version}{earlier}")
    solved.packages = {n: v for n, v in solved.packages.items() if base.get(n) != v}


def _holds_requirement(requirement: Requirement, packages: dict[str, str]) -> bool:
    version = packages.get(canonicalize_name(requirement.name))
    return version is not None and requirement.specifier.contains(version, prereleases=True)


def _resolve_versions(
    wanted: list[str], python: str, run_pip: RunPip
) -> list[tuple[str, str, list[str]]]:
    """Ask pip for the newest fitting version of each package; return what each requires."""
    with tempfile.TemporaryDirectory(prefix="unfix-") as folder:
        report = Path(folder) / "report.json"
        words = "install --dry-run --ignore-installed --no-deps --only-binary :all: --report"
        run_pip(["--python", python, *words.split(), str(report), *wanted])
        found: list[dict[str, Any]] = json.loads(report.read_text())["install"]
    return [
        (
            canonicalize_name(one["metadata"]["name"]),
            one["metadata"]["version"],
            one["metadata"].get("requires_dist", []),
        )
        for one in found
    ]
