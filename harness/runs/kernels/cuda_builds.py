"""Builds of SGLang's CUDA modules ahead of the runs that need them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from harness.core import paths
from harness.core.errors import NotReadyError, UnfixError
from harness.patching.child_environment import SINGLE_THREAD, ChildEnvironment
from harness.releases.managed_releases import Release
from harness.releases.source_trees import SourceTree
from harness.runs.kernels.cuda_sources import find_loaders
from harness.runs.kernels.values import BuildResult, BuildsRequest
from harness.sanitizer.device.cards import CARD_VARIABLE, DEFAULT_CARD
from harness.sanitizer.plugins.for_sglang.build_limits import NINJA_MODULE
from harness.sanitizer.plugins.for_sglang.recorded_builds import RecordedBuild
from harness.workers.answering_process import get_log, iterate_answers

PACKAGE_OF_LOADERS = "sglang/kernels/"
OBSTACLES = paths.HARNESS_FOLDER / "sanitizer/plugins/for_sglang/launch_obstacles.yaml"
_WORKER_MODULE = "harness.runs.kernels.build_worker"


def list_loaders(tree: SourceTree) -> list[str]:
    """List the functions of a release that build CUDA modules, each with its module."""
    found = set()
    for path in tree.iterate_files():
        if path.startswith(PACKAGE_OF_LOADERS) and path.endswith(".py"):
            module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            for loader in find_loaders(path, tree.read_text(path) or ""):
                found.add(f"{module}.{loader.function}")
    return sorted(found)


def read_obstacles() -> dict[str, str]:
    """Return what keeps a loader's kernels from being launched here, by its module and function."""
    import yaml

    reasons = yaml.safe_load(OBSTACLES.read_text())
    package = PACKAGE_OF_LOADERS.replace("/", ".")
    return {f"{package}{name}": reason for reason, names in reasons.items() for name in names}


def build_modules(
    release: Release,
    builds: Sequence[RecordedBuild],
    jobs: int,
    limit: float | None = None,
) -> Iterator[BuildResult]:
    """Build these modules of a release, each within `limit` seconds; yield results as they come."""
    if limit is not None and release.open_sources().read(NINJA_MODULE) is None:
        raise UnfixError(f"{release.name} has no {NINJA_MODULE}: its builds cannot have a limit")
    for card in dict.fromkeys(build.card for build in builds):  # a worker's process plays one card
        environment = ChildEnvironment({**SINGLE_THREAD, CARD_VARIABLE: card or DEFAULT_CARD})
        environment.use_checkout()
        chosen = [build for build in builds if build.card == card]
        request = msgspec.json.encode(BuildsRequest(chosen, jobs, limit))
        count = 0
        for line in iterate_answers(release.python, _WORKER_MODULE, request, environment):
            count += 1
            yield msgspec.json.decode(line, type=BuildResult)
        if count < len(chosen):  # the log is this worker's until the next one starts
            tail = get_log().read_text(errors="replace")[-2000:]
            raise NotReadyError(
                f"{len(chosen) - count} of {len(chosen)} modules for {card or DEFAULT_CARD} were "
                f"not built; the end of the log:\n{tail}"
            )
