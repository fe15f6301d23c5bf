"""What a search leaves behind, as values: what was asked, each run of the command, the answer."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from harness.store.prove.values import ToggleFacts


class BisectAnswer(StrEnum):
    """What one run of the command says."""

    PASSES = "passes"
    FAILS = "fails"
    CANNOT_TELL = "cannot tell"


class BisectTrial(msgspec.Struct):
    """One run of the command, on one release or commit, under some toggles."""

    where: str  # the release, or the commit
    toggles: list[str]  # put in or taken out beside those that are held
    why: str  # base, search, proof, again
    answer: BisectAnswer
    how: str  # in a few words: 'exit code 1', 'segmentation fault', '0.41 is below 0.9'
    seconds: float = 0.0
    value: float | None = None  # what --metric found
    reach_by_toggle: dict[str, int] | None = (
        None  # how often each toggle's code ran; None: not known
    )
    output: str = ""  # the end of what it printed
    replay: str = ""  # the command that runs it again
    search_name: str = ""  # of which part of a search over releases


class ToggleSearch(msgspec.Struct):
    """A search over toggles: all of `bisect toggles`, or how a step between releases is told."""

    name: str
    where: str
    direction: str  # revert: they make it fail; enable: they make it pass
    toggles: list[str] = []  # the candidates, in order
    left_out: dict[str, str] = {}  # the others, and why
    refused: dict[str, str] = {}  # of those: what this process could not take
    conflicts: list[list[str]] = []
    patches: dict[str, str] = {}  # of the culprits, as diffs
    minimal_sets: list[list[str]] = []  # each shows it and can spare none
    others_show_symptom: bool | None = None  # with all but them; None: cannot be told
    confidence: float | None = None
    least_detectable_rate: float | None = (
        None  # a symptom that shows more seldom may have been missed
    )
    cannot_tell: str = ""
    done: bool = False

    @property
    def verdict(self) -> str:
        if self.cannot_tell or not self.done:
            return "cannot tell"
        return "found" if self.minimal_sets else "none"


class BisectStep(msgspec.Struct):
    """Where in a history the outcome changes."""

    revisions: list[str]  # releases, or commits, the oldest first
    before: str = ""  # the last of the old kind
    after: str = ""  # the first of the new kind
    undecided: list[str] = []  # that cannot be told, and may be the step as well
    cannot_tell: str = ""
    changed: list[str] = []  # toggles whose state differs: 'ID: buggy -> fixed'
    modules: list[str] = []  # of SGLang that differ
    suspects: list[str] = []  # those of them that the failing run's output names
    about: str = ""  # of a commit: who, when, what


class BisectSearch(msgspec.Struct):
    """One call of `unfix bisect`, with all it found."""

    id: str
    kind: str  # toggles, releases, commits
    started: str
    symptom_command: list[str]  # the command that shows the symptom
    command: list[str] = []  # unfix's own
    status: str = "running"
    seconds: float = 0.0
    settings: dict[str, Any] = {}
    machine: dict[str, Any] = {}
    jobs: int = 1  # runs at a time
    is_deterministic: bool = False  # whether the same run twice is known to come out alike
    toggles: list[ToggleFacts] = []
    pinned_toggles: dict[str, str] = {}  # by id: 'fixed' or 'buggy', in every run
    trials: list[BisectTrial] = []
    toggle_searches: list[ToggleSearch] = []
    step: BisectStep | None = None
    verdict: str = ""  # found, none, cannot tell
    summary: str = ""  # the verdict in a sentence

    @property
    def found(self) -> bool:
        return self.verdict == "found"
