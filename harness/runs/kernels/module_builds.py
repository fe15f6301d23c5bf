"""CUDA modules that guards need, built beside the guards that need none.

Invariant: a guard waits for its own modules and for no others, and a failed build makes none wait:
the guard then builds by itself, and says why it cannot. Builds have the lowest priority, so they
take the cores that tests leave. What was built once for a release is not asked for again.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from harness.core import paths
from harness.core.code_digest import compute_digest, digest_code
from harness.core.errors import UnfixError
from harness.core.files import write_atomically
from harness.releases import cuda_toolkit, managed_releases
from harness.releases.managed_releases import Release
from harness.runs.kernels import cuda_builds
from harness.sanitizer.plugins.for_sglang.recorded_builds import (
    RECORDED_BUILDS,
    RecordedBuild,
    read_recorded_builds,
)
from harness.workers.release_target import ReleaseTarget

ReportBuilds = Callable[[int, int], None]  # how many are built, of how many
_PREFIX = "sglang.kernels.ops."  # which guards leave out
_CODE = digest_code("sanitizer")
_TURN = threading.Lock()  # one release at a time builds, with all jobs


class ModuleBuilds:
    """The builds of a release's modules, in a thread, and which of them are missing so far."""

    def __init__(self, release: Release, sources: str, names: Iterable[str]) -> None:
        wanted = set(names)
        self._release = release
        self._builds: list[RecordedBuild] = []
        self._markers: dict[str, Path] = {}  # by module, a file that says that it was built
        for name in sorted(wanted):
            builds = [b for b in read_recorded_builds(RECORDED_BUILDS) if _get_name(b) == name]
            marker = _locate_marker(release, sources, builds)
            if builds and not marker.exists():
                self._builds += builds
                self._markers[name] = marker
        self._missing = Counter(map(_get_name, self._builds))

    def start(self, jobs: int, report: ReportBuilds) -> None:
        if self._builds:
            report(0, len(self._builds))
            threading.Thread(target=self._build, args=(jobs, report), daemon=True).start()

    def is_missing(self, names: Iterable[str]) -> bool:
        return any(self._missing[name] for name in names)

    def _build(self, jobs: int, report: ReportBuilds) -> None:
        try:
            with _TURN, contextlib.suppress(UnfixError, OSError):
                failed = set()
                results = cuda_builds.build_modules(self._release, self._builds, jobs)
                for count, result in enumerate(results, 1):
                    name = result.loader.rpartition(".")[0].removeprefix(_PREFIX)
                    if result.problem:
                        failed.add(name)
                    if self._missing[name] == 1 and name not in failed:
                        write_atomically(self._markers[name], b"")
                    self._missing[name] -= 1
                    report(count, len(self._builds))
        finally:
            self._missing.clear()
            report(len(self._builds), len(self._builds))


def start_builds(
    target: ReleaseTarget, sources: str, names: set[str], jobs: int, report: ReportBuilds
) -> ModuleBuilds | None:
    """Start to build what guards of a managed release need; None if nothing can be built."""
    if not names or target.requested_as == "current" or cuda_toolkit.find_toolkit() is None:
        return None
    builds = ModuleBuilds(managed_releases.get_release(target.name), sources, names)
    builds.start(jobs, report)
    return builds


def _get_name(build: RecordedBuild) -> str:
    return build.module.removeprefix(_PREFIX)


def _locate_marker(release: Release, sources: str, builds: list[RecordedBuild]) -> Path:
    parts = release.name, sources, cuda_toolkit.LOCK_FILE.read_bytes(), _CODE
    digest = compute_digest(*parts, msgspec.json.encode(builds))
    return paths.cuda_builds_folder() / "built" / digest
