"""The packages that SGLang's metadata and our locks ask for."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from harness.core.errors import NotReadyError, UnfixError


def parse_requirements(lock_file: Path) -> list[Requirement]:
    lines = (line.split("#")[0].strip() for line in lock_file.read_text().splitlines())
    return [Requirement(line) for line in lines if line]


def read_lock(lock_file: Path) -> dict[str, str]:
    """Return the version of each package in a lock, by its canonical name."""
    return {
        canonicalize_name(one.name): next(iter(one.specifier)).version
        for one in parse_requirements(lock_file)
    }


def read_wheel_requirements(wheel: Path) -> list[Requirement]:
    """Read what a wheel requires on this machine, without its extras."""
    from email.parser import Parser

    with zipfile.ZipFile(wheel) as archive:
        files = [one for one in archive.namelist() if one.endswith(".dist-info/METADATA")]
        if not files:
            raise NotReadyError(f"{wheel} has no metadata: it is no wheel of SGLang")
        metadata = Parser().parsestr(archive.read(files[0]).decode())
    return select_applicable(metadata.get_all("Requires-Dist") or ())


def read_project_requirements(project_file: Path) -> list[str]:
    """Read the dependencies that a checkout's pyproject.toml states, as they are."""
    import tomllib

    try:
        project = tomllib.loads(project_file.read_text()).get("project", {})
    except FileNotFoundError:
        raise UnfixError(
            f"there is no {project_file}, from which the pins of a checkout are read"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise UnfixError(f"{project_file} is no TOML: {error}") from error
    stated = project.get("dependencies")
    if not stated:
        raise UnfixError(f"{project_file} states no project.dependencies: no pins can be read")
    for text in stated:
        try:
            Requirement(text)
        except InvalidRequirement as error:
            raise UnfixError(f"{project_file}: '{text}' is no requirement: {error}") from error
    return list(stated)


def select_applicable(texts: Iterable[str]) -> list[Requirement]:
    """Select the requirements whose markers hold here, without extras."""
    requirements = map(Requirement, texts)
    return [one for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""})]
