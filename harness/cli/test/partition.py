"""Which tests run together: one process each, so that a release is imported once a process."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.releases import managed_releases

# Those that take longest begin first, so that none is left for the end; the others follow.
LONGEST_FIRST = ("*.py", "bisect", "prove", "mutate", "audit", "fuzz", "eval", "matrix")
# Of these, the Python says what they can test.
RELEASE_PYTHON_FOLDERS = ("kernels", "releases")
CONCURRENT_ONLY = ("-m", "not alone")
# What must hold of every release; the guards, which need a fix in or out, are `unfix prove`'s.
# Longer tracebacks show each argument, and of one of gigabytes that takes as long as ten tests.
PROPERTY_ARGUMENTS = ("suites", "-m", "not guards", "--profile", "smoke", "--tb=short")


@dataclass(frozen=True)
class PytestPart:
    """One pytest process: which tests, under which Python."""

    name: str
    python: str
    arguments: tuple[str, ...]


def list_concurrent_parts(
    tests: Path, releases: Sequence[managed_releases.Release]
) -> list[PytestPart]:
    """All but those that measure their own time."""
    folders = {file.relative_to(tests).parts[0] for file in tests.glob("*/**/test_*.py")}
    others = sorted({"*.py", *folders} - {*RELEASE_PYTHON_FOLDERS, *LONGEST_FIRST})
    base = str(managed_releases.CPU_BASE.python)

    def ours(name: str) -> PytestPart:
        return PytestPart(
            f"tests/{name}", sys.executable, (*_list_test_paths(tests, name), *CONCURRENT_ONLY)
        )

    return [
        *map(ours, (name for name in LONGEST_FIRST if name in {"*.py", *folders})),
        *(_make_release_part(release) for release in releases),
        *map(ours, others),
        PytestPart("tests/kernels/checked", base, ("tests/kernels/checked",)),
        PytestPart("tests/kernels/compiled", base, ("tests/kernels/compiled",)),
        PytestPart("tests/kernels/gpu", base, ("tests/kernels/gpu",)),
        PytestPart("tests/kernels/ranks", base, ("tests/kernels/ranks",)),
    ]


def make_serial_part(tests: Path) -> PytestPart:
    apart = tuple(f"--ignore={tests.name}/{name}" for name in RELEASE_PYTHON_FOLDERS)
    return PytestPart(
        "tests that measure time", sys.executable, (tests.name, *apart, "-m", "alone")
    )


def _list_test_paths(tests: Path, name: str) -> list[str]:
    if name != "*.py":
        return [f"{tests.name}/{name}"]
    return [f"{tests.name}/{file.name}" for file in sorted(tests.glob("test_*.py"))]


def _make_release_part(release: managed_releases.Release) -> PytestPart:
    """One process, so that the release is imported once."""
    return PytestPart(
        f"SGLang {release.name}", str(release.python), ("tests/releases", *PROPERTY_ARGUMENTS)
    )
