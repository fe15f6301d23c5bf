"""The typed requests of `unfix zoo`: to the run, and to its worker."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness.core.errors import UnfixError
from harness.runs.zoo.architecture import Architecture
from harness.runs.zoo.features import STRENGTHS, choose_combinations
from harness.runs.zoo.rank_layout import ONE_RANK, RankLayout
from harness.sanitizer.launches import LAUNCH_CHECKS
from harness.sanitizer.ranks.messages import IN_ORDER


@dataclass(frozen=True)
class ZooRequest:
    """One valid call of `unfix zoo`."""

    names: list[str]  # architectures and kernel families, or all
    release: str | None
    card: str
    jobs: int | None
    seconds: float  # the limit of one architecture
    revert: list[str]
    enable: list[str]
    toggles: list[Path]  # folders
    check: list[str]  # checks of launches: graphs, streams
    since: str | None = None  # the release to compare with
    layout: RankLayout = ONE_RANK
    sum_order: str = IN_ORDER  # of the ranks' parts
    features: str = ""  # "each" of an architecture, "pairs" of them, or combinations by name

    def __post_init__(self) -> None:
        if self.jobs is not None and self.jobs < 1:
            raise UnfixError(f"-j is the number of architectures at a time, not {self.jobs}")
        if self.since and (self.revert or self.enable):
            raise UnfixError(
                "--since compares releases as they are: leave out --revert and --enable"
            )
        if self.since and self.since == self.release:
            raise UnfixError(f"--since {self.since} is the release that is compared: name another")
        if self.layout.count > 1 and self.since:
            raise UnfixError("--since compares models on one rank: leave out --tp and --pp")
        if self.layout.count > 1 and self.features:
            raise UnfixError("--features serves models on one rank: leave out --tp and --pp")
        if self.layout.count == 1 and self.sum_order != IN_ORDER:
            raise UnfixError("--sum-order is of several ranks: add --tp")
        if self.features and self.features not in STRENGTHS:
            choose_combinations(self.features)
        unknown = [word for word in self.check if word not in LAUNCH_CHECKS]
        if unknown:
            raise UnfixError(
                f"--check takes {' and '.join(LAUNCH_CHECKS)} here, and not "
                f"{', '.join(unknown)}; the checks of kernels are always on"
            )
        if not self.seconds > 0:
            raise UnfixError(f"--seconds is a positive number, not {self.seconds}")


class ZooWorkerRequest(msgspec.Struct):
    """What a worker of the zoo reads from its input."""

    card: str
    folder: str  # for results and weights
    jobs: int
    seconds: float
    architectures: list[Architecture]
    families: list[str] = []  # of kernels; their numbers follow those of the architectures
    check: list[str] = []
    layout: RankLayout = ONE_RANK
    sum_order: str = IN_ORDER
    features: str = ""
    mended: list[str] = []  # the pages of findings whose fix is enabled
