"""The kernels of a release as values: each with who launched it under check, and who would."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

import msgspec

from harness.sanitizer.plugins.for_sglang.recorded_builds import RecordedBuild


class KernelKind(StrEnum):
    TRITON = "triton"
    CUDA = "cuda"


class ListedKernel(msgspec.Struct):
    """One kernel of a release."""

    kind: KernelKind
    name: str
    file: str  # from the package on
    line: int
    helper_of: list[str] = []  # the kernels that call it, if nothing launches it by itself
    launch_sites: list[str] = []  # file:line function; for a CUDA kernel its loaders
    entries: list[str] = []  # the nearest code outside of the kernels' folders: module:definition
    conditions: list[str] = []  # what that code reads before it: arguments, variables, devices
    reached_by: list[str] = []  # "suite GUARD", "zoo ARCHITECTURE", "server NAME"
    refusals: list[str] = []  # why launches were refused
    reached_lines: int = 0
    line_count: int = 0  # 0 where no lines are known: CUDA, or a record of another release
    unreached_lines: list[int] = []  # of its file: what of these lines did not run
    obstacle: str = ""  # what keeps it from being reached; empty if something reaches it

    @property
    def folder(self) -> str:
        """Return its file's folder: `sglang/kernels/ops/moe` for sglang/kernels/ops/moe/a/b.py."""
        parts = self.file.split("/")[:-1]
        return "/".join(parts[:4])

    @property
    def is_reached(self) -> bool:
        return bool(self.reached_by)


class InventoryRequest(msgspec.Struct, frozen=True):
    """The release whose kernels a worker is to list."""

    location: str
    source_digest: str
    release: str
    launches: str  # the file of recorded launches


class KernelInventory(msgspec.Struct):
    """All kernels of one release."""

    release: str
    kernels: list[ListedKernel]
    recorded_on: list[str] = []  # the releases of the recorded launches

    def count_reached(self, kind: KernelKind) -> tuple[int, int]:
        """Return how many kernels of a kind something reaches, and how many there are."""
        kernels = [kernel for kernel in self.kernels if kernel.kind is kind]
        return sum(kernel.is_reached for kernel in kernels), len(kernels)

    def count_obstacles(self) -> Counter[str]:
        return Counter(kernel.obstacle for kernel in self.kernels if kernel.obstacle)

    def select(self, words: list[str]) -> KernelInventory:
        """Keep the kernels whose name is one of the words, or whose file contains one."""
        chosen = [
            kernel
            for kernel in self.kernels
            if any(word == kernel.name or word.replace(".", "/") in kernel.file for word in words)
        ]
        return msgspec.structs.replace(self, kernels=chosen)


class BuildsRequest(msgspec.Struct, frozen=True):
    """What a worker is to build, and how many at once."""

    builds: list[RecordedBuild]
    jobs: int
    limit: float | None = None  # the seconds of one build


class BuildResult(msgspec.Struct, frozen=True):
    """A module that was built or found built, or the reason why not."""

    name: str
    seconds: float
    problem: str = ""
    loader: str = ""  # its module and function
    kernels: list[str] = []  # that recorded runs have launched, each to its end


class BuildSurvey(msgspec.Struct, frozen=True):
    """What became of recorded builds, beside all loaders of the release."""

    release: str
    results: list[BuildResult]
    loaders: list[str]  # of the release, each its module and function
    obstacles: dict[str, str] = {}  # what keeps a loader's kernels from being launched here

    @property
    def built_loaders(self) -> set[str]:
        """The loaders of which at least one module is built."""
        return {result.loader for result in self.results if not result.problem}

    @property
    def launched_loaders(self) -> set[str]:
        """The loaders of which a module is built and has launched a kernel."""
        return {result.loader for result in self.results if result.kernels and not result.problem}

    @property
    def reason_by_loader(self) -> dict[str, str]:
        """The loaders of which nothing was launched, each with the reason."""
        return {
            loader: self.obstacles.get(loader)
            or self.failure_by_loader.get(loader)
            or "no recorded run launches it"
            for loader in self.loaders
            if loader not in self.launched_loaders
        }

    @property
    def failure_by_loader(self) -> dict[str, str]:
        """The loaders of which no module is built, each with the reason."""
        return {
            result.loader: result.problem
            for result in self.results
            if result.problem and result.loader not in self.built_loaders
        }

    @property
    def unrecorded_loaders(self) -> list[str]:
        """The loaders whose arguments no run has recorded."""
        tried = {result.loader for result in self.results}
        return [loader for loader in self.loaders if loader not in tried]
