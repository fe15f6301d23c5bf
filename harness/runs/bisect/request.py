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
    candidates: list[str] = []  # ids, families or globs of toggles; none: all of them
    enable: bool = False  # the command fails: search the fixes that mend it
    find_all: bool = False  # all sets of culprits, not one of the smallest
    repeat: int = 1  # runs of one set at most, for a symptom that does not show each time
    confidence: float = 0.99  # of such a search
    release: str | None = None
    good: str = ""  # a release or commit on which the command passes
    bad: str = ""
    among: list[str] | None = None  # only these releases, and the two ends
    repository: str = ""  # the checkout of SGLang whose commits are searched
    jobs: int | None = None  # runs at a time
    device: str = "cpu"
    profile: str = "default"  # of a guard
    memory_gib: float | None = None  # for a run of a guard
    time_limit: float | None = None  # seconds a run may take
    server_command: str = ""
    ready_url: str = ""
    hold_fixed: list[str] = []
    hold_buggy: list[str] = []


class EarlierSearch(msgspec.Struct, frozen=True):
    """How a call names the search that it resumes or replays."""

    kind: SearchKind
    name: str = ""  # an id or its beginning; a record's file; empty: the newest that was stopped
    replay: bool = False  # run nothing: every answer is in the log
    repository: str = ""  # of the log's commits, if it is elsewhere on this machine
    toggle_folders: list[str] = []  # the same of its toggles
