"""Which tests run together: one process each, so that a release is imported once a process."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.releases import managed

# Those that take longest begin first, so that none is left for the end; the others follow.
LONGEST = ("*.py", "bisect", "prove", "mutate", "audit", "fuzz", "eval", "matrix")
# Of these, the Python says what they can test.
ELSEWHERE = ("kernels", "releases")
NOT_ALONE = ("-m", "not alone")
# What must hold of every release; the guards, which need a fix in or out, are `unfix prove`'s.
# Longer tracebacks show each argument, and of one of gigabytes that takes as long as ten tests.
PROPERTIES = ("suites", "-m", "not guards", "--profile", "smoke", "--tb=short")


@dataclass(frozen=True)
class Part:
    """One pytest process: which tests, under which Python."""

    name: str
    python: str
    words: tuple[str, ...]


def side_by_side(tests: Path, releases: Sequence[managed.Release]) -> list[Part]:
    """All but those that measure their own time."""
    folders = {file.relative_to(tests).parts[0] for file in tests.glob("*/**/test_*.py")}
    others = sorted({"*.py", *folders} - {*ELSEWHERE, *LONGEST})
    base = str(managed.BASE.python)

    def ours(name: str) -> Part:
        return Part(f"tests/{name}", sys.executable, (*_words(tests, name), *NOT_ALONE))

    return [
        *map(ours, (name for name in LONGEST if name in {"*.py", *folders})),
        *(_of_a_release(release) for release in releases),
        *map(ours, others),
        Part("tests/kernels/checked", base, ("tests/kernels/checked",)),
        Part("tests/kernels/compiled", base, ("tests/kernels/compiled",)),
        Part("tests/kernels/gpu", base, ("tests/kernels/gpu",)),
        Part("tests/kernels/ranks", base, ("tests/kernels/ranks",)),
    ]


def alone(tests: Path) -> Part:
    apart = tuple(f"--ignore={tests.name}/{name}" for name in ELSEWHERE)
    return Part("tests that measure time", sys.executable, (tests.name, *apart, "-m", "alone"))


def _words(tests: Path, name: str) -> list[str]:
    if name != "*.py":
        return [f"{tests.name}/{name}"]
    return [f"{tests.name}/{file.name}" for file in sorted(tests.glob("test_*.py"))]


def _of_a_release(release: managed.Release) -> Part:
    """One process, so that the release is imported once."""
    return Part(f"SGLang {release.name}", str(release.python), ("tests/releases", *PROPERTIES))
