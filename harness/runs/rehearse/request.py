"""The typed requests of `unfix rehearse`: to the run, and to its worker."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness.core.errors import UnfixError
from harness.runs.rehearse.deployment import Deployment


@dataclass(frozen=True)
class RehearseRequest:
    """One valid call of `unfix rehearse`."""

    models: list[str]  # models or deployments by name
    config: Path | None
    gpu: str | None
    gpus: int | None
    all: bool
    thresholds: bool
    all_layers: bool
    release: str | None
    diff: str  # A..B: what changed from one release to the other
    jobs: int | None
    seconds: float  # the limit of one deployment
    revert: list[str]
    enable: list[str]
    toggles: list[Path]  # folders

    def __post_init__(self) -> None:
        if self.jobs is not None and self.jobs < 1:
            raise UnfixError(f"-j is the number of deployments at a time, not {self.jobs}")
        if not self.seconds > 0:
            raise UnfixError(f"--seconds is a positive number, not {self.seconds}")
        if self.gpus is not None and self.gpus < 1:
            raise UnfixError(f"--gpus is the number of cards of the host, not {self.gpus}")
        if not self.models and not self.all and self.config is None:
            raise UnfixError(
                "which model? `unfix rehearse MODEL -- SERVER ARGUMENTS`, or `--config FILE`, or "
                "`--all` for the fixed set of suites/rehearse/deployments.yaml"
            )
        if self.diff and (self.release or not all(self.diff.partition(".."))):
            raise UnfixError(
                f"--diff {self.diff} is not A..B without --release: say --diff 0.5.20..0.5.23"
            )
        if self.config is not None and (self.models or self.all):
            raise UnfixError("--config is the model itself: name no other beside it")

    @property
    def releases(self) -> list[str]:
        """The releases to rehearse on, by name; empty for the newest."""
        if self.diff:
            earlier, _, later = self.diff.partition("..")
            return [earlier, later]
        return [self.release] if self.release else []


class RehearseWorkerRequest(msgspec.Struct):
    """What a worker of a rehearsal reads from its input."""

    folder: str
    jobs: int
    seconds: float
    deployments: list[Deployment]
