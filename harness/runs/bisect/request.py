"""One call of `unfix bisect` as a value: made from the arguments once, stored with the search."""

from __future__ import annotations

from typing import Literal

import msgspec

from harness.runs.bisect.outcome_rules import OutcomeRules

SearchKind = Literal["toggles", "releases", "commits"]


class BisectRequest(msgspec.Struct, frozen=True):
    """A search to make; `--resume` and `--replay` decode it from the settings of a stored one."""

    kind: SearchKind
    command: list[str] = []  # the command that shows the symptom, or the name of one guard
    rules: OutcomeRules = OutcomeRules()
    toggle_folders: list[str] = []
    candidates: list[str] = []  # ids, families or globs of toggles; empty: all
    enable: bool = False  # the command fails: search for fixes that mend it
    find_all: bool = False  # all sets of culprits, not one of the smallest
    repeat: int = 1  # most runs of one set, for a flaky symptom
    confidence: float = 0.99  # confidence in the result of a flaky search
    release: str | None = None
    good: str = ""  # a release or commit on which the command passes
    bad: str = ""
    among: list[str] | None = None  # only these releases, and the two ends
    repository: str = ""  # the checkout of SGLang whose commits are searched
    jobs: int | None = None  # runs at a time
    device: str = "cpu"
    profile: str = "default"  # profile of a guard
    memory_gib: float | None = None  # memory limit of a guard's run
    time_limit: float | None = None  # seconds a run may take
    server_command: str = ""
    ready_url: str = ""
    hold_applied: list[str] = []
    hold_reverted: list[str] = []


class EarlierSearch(msgspec.Struct, frozen=True):
    """The name of the search that a call resumes or replays."""

    kind: SearchKind
    name: str = ""  # an id or its beginning; a record's file; empty: the newest that was stopped
    replay: bool = False  # run nothing: the log has every answer
    repository: str = ""  # the checkout with the log's commits, if it has moved
    toggle_folders: list[str] = []  # the folders with the log's toggles, if they have moved
