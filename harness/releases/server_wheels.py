"""Fetches the wheels that a server of a release needs, for a Python of another machine.

pip resolves the release with everything it requires. The wheels that are needed are then selected
from the metadata of each, as the other machine's Python reads it: pip reads markers such as
`python_version < "3.12"` for the Python that it runs in. Example: `--without torch` leaves out
torch and the NVIDIA libraries that nothing but torch requires.
"""

from __future__ import annotations

import json
import platform
import re
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from harness.core.errors import NotReadyError, UnfixError
from harness.core.files import write_atomically
from harness.releases import installer, pack_installer
from harness.releases.installer import ReportMessage

RESOLUTION = "resolved.json"  # beside the parts: a second call fetches the same versions
MAX_ROUNDS = 12
WHEELS_A_CALL = 8  # pip keeps what it downloads when a call is complete
NO_WHEEL = re.compile(r"No matching distribution found for ([^()]+?)(?: \(from [^)]*\))?\)?$")


@dataclass(frozen=True)
class ResolvedWheel:
    """A wheel that pip chose; its digest is that of the index, '' if the index has none."""

    name: str
    version: str
    file: str
    sha256: str
    requires: tuple[str, ...] = ()


@dataclass(frozen=True)
class PackRequest:
    """What a server's pack is made from: another request is resolved anew."""

    requirements: tuple[str, ...]
    python: str
    left_out: tuple[str, ...] = ()
    machine: str = field(default_factory=platform.machine)


def fetch_server_wheels(
    request: PackRequest, folder: Path, resolution: Path, report: ReportMessage
) -> list[str]:
    """Fetch the wheels of a request into a folder and return their names; keep what is whole."""
    wheels = _read_resolution(request, resolution)
    if wheels is None:
        report(f"resolving {request.requirements[0]} for Python {request.python}")
        wheels = resolve_wheels(request, folder, report)
        rows = [asdict(one) for one in wheels]
        text = json.dumps({"request": asdict(request), "wheels": rows}, indent=1)
        write_atomically(resolution, text)
    missing = [one for one in wheels if not _is_whole(folder / one.file, one)]
    if len(missing) < len(wheels):
        report(f"{len(wheels) - len(missing)} of {len(wheels)} wheels are here")
    for start in range(0, len(missing), WHEELS_A_CALL):
        batch = missing[start : start + WHEELS_A_CALL]
        done = len(wheels) - len(missing) + start
        report(f"fetching {', '.join(one.name for one in batch)} ({done} of {len(wheels)})")
        for one in batch:
            (folder / one.file).unlink(missing_ok=True)
        names = [f"{one.name}=={one.version}" for one in batch]
        words = "download --only-binary :all: --no-deps --find-links".split()
        target = list_target_options(request.python)
        installer.run_pip([*words, str(folder), *target, "-d", str(folder), *names])
    wrong = [one.file for one in missing if not _is_whole(folder / one.file, one)]
    if wrong:
        raise NotReadyError(
            f"pip fetched other files than it resolved, or damaged ones: {', '.join(wrong)}; "
            f"call again, or remove {resolution} to resolve anew"
        )
    return [one.file for one in wheels]


def _read_resolution(request: PackRequest, resolution: Path) -> list[ResolvedWheel] | None:
    try:
        data = json.loads(resolution.read_text())
        wheels = [ResolvedWheel(**(o | {"requires": tuple(o["requires"])})) for o in data["wheels"]]
        known = data["request"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return wheels if known == json.loads(json.dumps(asdict(request))) else None


def _is_whole(path: Path, wheel: ResolvedWheel) -> bool:
    if not path.is_file():
        return False
    if wheel.sha256:
        return pack_installer.compute_digest(path) == wheel.sha256
    return installer.is_whole_wheel(path)


def resolve_wheels(
    request: PackRequest, folder: Path, report: ReportMessage
) -> list[ResolvedWheel]:
    """Choose the versions of everything that is needed, and build what has no wheel into a folder.

    pip drops what its own Python would not need, so a requirement that is left over is added to
    what pip is asked for, until none is.
    """
    roots = [Requirement(text) for text in request.requirements]
    added: list[str] = []
    for _ in range(MAX_ROUNDS):
        found = _resolve_or_build([*request.requirements, *added], request, folder, report)
        needed, missing, left_out = select_needed(found, roots, request)
        unknown = set(request.left_out) - left_out
        if unknown:
            raise UnfixError(
                f"--without {', '.join(sorted(unknown))}: a server of {request.requirements[0]} "
                "needs no such package"
            )
        if not missing:
            return [found[name] for name in sorted(needed)]
        added += sorted(missing)
    raise NotReadyError(f"pip finds no versions of {', '.join(sorted(missing))} that fit the rest")


def select_needed(
    wheels: dict[str, ResolvedWheel], roots: Sequence[Requirement], request: PackRequest
) -> tuple[set[str], set[str], set[str]]:
    """Select the packages that the roots lead to, from the metadata of each.

    Returns their names, the requirements that no package meets, and the patterns of --without
    that matched.
    """
    environment = {
        "python_version": request.python,
        "python_full_version": f"{request.python}.0",
        "implementation_version": f"{request.python}.0",
    }
    pending = list(roots)
    needed: dict[str, set[str]] = {}  # the extras of each package
    missing: set[str] = set()
    matched: set[str] = set()
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        if patterns := _match_left_out(requirement, request):
            matched |= patterns
            continue
        if name not in wheels:
            missing.add(f"{requirement.name}{_render_extras(requirement)}{requirement.specifier}")
            continue
        extras = needed.setdefault(name, set())
        for extra in {"", *requirement.extras} - extras:
            extras.add(extra)
            for child in map(Requirement, wheels[name].requires):
                if child.marker is None or child.marker.evaluate(environment | {"extra": extra}):
                    pending.append(child)
    return set(needed), missing, matched


def _match_left_out(requirement: Requirement, request: PackRequest) -> set[str]:
    name = canonicalize_name(requirement.name)
    return {one for one in request.left_out if fnmatch(name, one.replace("_", "-").lower())}


def _render_extras(requirement: Requirement) -> str:
    return f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""


def _resolve_or_build(
    wanted: list[str], request: PackRequest, folder: Path, report: ReportMessage
) -> dict[str, ResolvedWheel]:
    built: set[str] = set()
    while True:
        try:
            return _resolve_wheels(wanted, request.python, folder)
        except NotReadyError as error:
            without_wheel = NO_WHEEL.search(str(error))
            if without_wheel is None or without_wheel[1] in built:
                raise
            built.add(without_wheel[1])
            requirement = Requirement(without_wheel[1])
            if _match_left_out(requirement, request):
                _write_empty_wheel(requirement, folder)
                continue
            report(f"building {requirement}, which has no wheel for Python {request.python}")
            build_pure_wheel(str(requirement), folder)


def _write_empty_wheel(requirement: Requirement, folder: Path) -> None:
    """Write a wheel without contents, so that pip can resolve what is left out anyway."""
    pinned = [one.version for one in requirement.specifier if one.operator == "=="]
    name, version = canonicalize_name(requirement.name).replace("-", "_"), (*pinned, "0")[0]
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        metadata = f"Metadata-Version: 2.1\nName: {requirement.name}\nVersion: {version}\n"
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def build_pure_wheel(requirement: str, folder: Path) -> None:
    """Build a wheel from its sources; refuse one that is for this machine's Python alone."""
    with tempfile.TemporaryDirectory(prefix=".built-", dir=folder) as built:
        name = Requirement(requirement).name
        hint = f"--without {name} leaves it out"
        words = ["wheel", "--no-deps", "--no-binary", name, "-w", built, requirement]
        try:
            installer.run_pip(words)
        except NotReadyError as error:
            raise NotReadyError(
                f"{requirement} cannot be had: it has no wheel that fits, and none was built "
                f"({error}); {hint}"
            ) from error
        for wheel in Path(built).glob("*.whl"):
            if not wheel.name.endswith("-none-any.whl"):
                raise NotReadyError(
                    f"{requirement} cannot be had: it has no wheel that fits, and its sources "
                    f"build to {wheel.name}, which is for a Python of this machine alone; {hint}"
                )
            wheel.replace(folder / wheel.name)


def _resolve_wheels(wanted: list[str], python: str, folder: Path) -> dict[str, ResolvedWheel]:
    with tempfile.TemporaryDirectory(prefix="unfix-") as scratch:
        report = Path(scratch) / "report.json"
        words = "install --dry-run --only-binary :all: --find-links".split()
        target = ["--target", f"{scratch}/nothing", *list_target_options(python)]
        installer.run_pip([*words, str(folder), *target, "--report", str(report), *wanted])
        found = json.loads(report.read_text())["install"]
    return {one.name: one for one in map(_read_report_row, found)}


def _read_report_row(row: dict[str, Any]) -> ResolvedWheel:
    download, metadata = row["download_info"], row["metadata"]
    return ResolvedWheel(
        canonicalize_name(metadata["name"]),
        metadata["version"],
        unquote(urlsplit(download["url"]).path.rpartition("/")[2]),
        download.get("archive_info", {}).get("hashes", {}).get("sha256", ""),
        tuple(metadata.get("requires_dist", ())),
    )


# pip matches platform tags literally, so every tag that a wheel may have is listed.
GLIBC_TAGS = (*(f"_2_{minor}" for minor in reversed(range(5, 40))), "2014", "2010", "1")


def list_target_options(python: str) -> list[str]:
    """List pip's options that choose wheels for a Python version and this kind of machine."""
    tags = (f"manylinux{tag}_{platform.machine()}" for tag in GLIBC_TAGS)
    platforms = [word for tag in tags for word in ("--platform", tag)]
    return ["--python-version", python, "--implementation", "cp", *platforms]
