"""The partition of the tests into pytest processes, so that each imports a release once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.releases import managed_releases

# The longest parts start first, so that none of them runs alone at the end.
LONG_PARTS = ("*.py", "prove", "mutate", "bisect", "eval", "audit", "fuzz", "matrix", "rehearse")
# These need the Python of a release.
RELEASE_PYTHON_FOLDERS = ("sanitizer", "releases")
# Properties hold on every release; guards need a toggled fix, so `unfix prove` runs them. A long
# traceback prints each argument, and a tensor of gigabytes takes as long as ten tests.
PROPERTY_ARGUMENTS = ("suites", "-m", "not guards", "--profile", "smoke", "--tb=short")


@dataclass(frozen=True)
class PytestPart:
    """One pytest process: its tests and its Python."""

    name: str
    python: str
    arguments: tuple[str, ...]


def list_parts(tests: Path, releases: Sequence[managed_releases.Release]) -> list[PytestPart]:
    """List the parts of all tests, in the order in which they start."""
    folders = {file.relative_to(tests).parts[0] for file in tests.glob("*/**/test_*.py")}
    others = sorted({"*.py", *folders} - {*RELEASE_PYTHON_FOLDERS, *LONG_PARTS})
    base = str(managed_releases.CPU_BASE.python)
    sanitizer = sorted({str(file.parent) for file in (tests / "sanitizer").glob("*/test_*.py")})

    def make_own_part(name: str) -> PytestPart:
        paths = tuple(_list_test_paths(tests, name))
        return PytestPart(f"tests/{name}", sys.executable, paths)

    return [
        *map(make_own_part, (name for name in LONG_PARTS if name in {"*.py", *folders})),
        # The newest release has the most tests.
        *map(_make_release_part, reversed(releases)),
        *(
            PytestPart(path, base, (path,))
            for path in (str(Path(folder).relative_to(tests.parent)) for folder in sanitizer)
        ),
        *map(make_own_part, others),
    ]


def _list_test_paths(tests: Path, name: str) -> list[str]:
    if name != "*.py":
        return [f"{tests.name}/{name}"]
    return [f"{tests.name}/{file.name}" for file in sorted(tests.glob("test_*.py"))]


def _make_release_part(release: managed_releases.Release) -> PytestPart:
    words = ("tests/releases", *PROPERTY_ARGUMENTS)
    return PytestPart(f"SGLang {release.name}", str(release.python), words)
