"""The release that a run's workers import, and the Python that has it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.releases.source_trees import SourceTree


@dataclass(frozen=True)
class ReleaseTarget:
    """A release that a run goes over."""

    name: str
    python: Path
    sources: SourceTree
    requested_as: str = ""  # the name on the command line, as "current"
    device: str = "cpu"
