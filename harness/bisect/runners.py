"""Whoever can run a command under toggles, as the searches see them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness.patching.plan import Direction
from harness.releases.sources import SourceTree
from harness.store.bisect.values import Answer, Trial

Choices = tuple[tuple[str, Direction], ...]  # toggles by id, and what is done to each


@dataclass(frozen=True)
class Place:
    """Where a command runs: a release, `current`, or a commit."""

    name: str
    tree: SourceTree
    python: Path
    folder: Path  # the environment that the python belongs to


@dataclass(frozen=True)
class Job:
    """One run that is wanted: where, and with which toggles in what way."""

    place: Place
    toggles: tuple[str, ...]  # those that are asked about
    choices: Choices  # those and the held ones
    why: str

    def came_to(self, answer: Answer, how: str, seconds: float, **more: Any) -> Trial:
        where, toggles = self.place.name, list(self.toggles)
        return Trial(where, toggles, self.why, answer, how, round(seconds, 3), **more)


class Runner(Protocol):
    """Runs jobs, some at a time."""

    jobs: int
    steady: bool  # whether the same run twice is known to come out alike

    def unfit(self, place: Place, choices: Choices) -> dict[str, str]:
        """Those of the toggles that cannot be put in here, and why."""
        ...

    def run(self, batch: list[Job]) -> Iterator[tuple[int, Trial]]:
        """Each job's place in the batch and what came of it, as they end."""
        ...

    def close(self) -> None: ...
