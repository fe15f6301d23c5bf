"""The release that a run's workers import, and the Python that has it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.releases.source_trees import SourceTree


@dataclass(frozen=True)
class ReleaseTarget:
    """A release of a run."""

    name: str
    python: Path
    sources: SourceTree
    requested_as: str = ""  # its name on the command line, such as "current"
    device: str = "cpu"
