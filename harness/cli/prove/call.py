"""The unresolved call of `unfix prove` or `unfix lifecycle`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.store.prove.values import ProveKind

# The options that `--resume` and `--failed` take from an earlier run, unless the call sets them.
RESUMED_SETTINGS = "names proposed release device profile k shard words limit memory seed".split()


@dataclass(frozen=True)
class ProveCall:
    """The words and options of a call."""

    command: ProveKind
    usage: str
    names: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)  # the words behind `--`, for pytest
    release: list[str] = field(default_factory=list)
    device: str = "cpu"
    profile: str = "default"
    proposed: bool = False  # prove proposed toggles: those named, or all
    jobs: int | None = None
    k: str | None = None
    limit: float = 300.0
    memory: float | None = None
    shard: str = "1/1"
    seed: int | None = None  # None: drawn
    resume: str | None = None  # the id of a run, or "" for the newest that fits
    failed: str | None = None
    toggles: list[Path] = field(default_factory=list)
