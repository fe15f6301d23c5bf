"""The protocol of runners: they execute the symptom command under toggles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness.core.outcomes import Verdict
from harness.fixes.patch_plan import Direction
from harness.releases.source_trees import SourceTree
from harness.store.bisect.values import BisectTrial

ToggleChoices = tuple[tuple[str, Direction], ...]  # ids of toggles with directions


@dataclass(frozen=True)
class VersionUnderTest:
    """The SGLang that a command runs on: a release, `current`, or a commit."""

    name: str
    tree: SourceTree
    python: Path
    environment_folder: Path  # the environment that the python belongs to


@dataclass(frozen=True)
class TrialJob:
    """One run to execute: its version and its toggles."""

    version: VersionUnderTest
    toggles: tuple[str, ...]  # the toggles of the question
    choices: ToggleChoices  # the same and the pinned ones, with their directions
    why: str

    def make_trial(self, answer: Verdict, how: str, seconds: float, **details: Any) -> BisectTrial:
        where, toggles = self.version.name, list(self.toggles)
        return BisectTrial(where, toggles, self.why, answer, how, round(seconds, 3), **details)


class TrialRunner(Protocol):
    """Runs jobs, some at a time."""

    jobs: int
    is_deterministic: bool  # True if equal runs have equal outcomes

    def find_unfit_toggles(
        self, version: VersionUnderTest, choices: ToggleChoices
    ) -> dict[str, str]:
        """Return the toggles that cannot be applied in this runner's process, with the reasons."""
        ...

    def run(self, batch: list[TrialJob]) -> Iterator[tuple[int, BisectTrial]]:
        """Iterate pairs of a job's index in the batch and its trial, as jobs end."""
        ...

    def close(self) -> None: ...
