"""A stored search of `unfix bisect`: its settings, its trials, its result."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from harness.core.outcomes import RunStatus, Verdict, require_word
from harness.store.prove.values import ToggleFacts

ANSWERS = (Verdict.PASSES, Verdict.FAILS, Verdict.CANNOT_TELL)


class BisectTrial(msgspec.Struct):
    """One run of the command on a release or commit, under some toggles."""

    where: str  # the release, or the commit
    toggles: list[str]  # applied or reverted, beside the pinned ones
    why: str  # base, search, proof, again
    answer: Verdict
    how: str  # the outcome: 'exit code 1', 'segmentation fault', '0.41 is below 0.9'
    seconds: float = 0.0
    value: float | None = None  # the number of --metric
    reach_by_toggle: dict[str, int] | None = None  # calls of each toggle's code; None: unknown
    output: str = ""  # the end of the command's output
    replay: str = ""  # the command line that repeats this run
    search_name: str = ""  # the name of its `ToggleSearch`

    def __post_init__(self) -> None:
        require_word(self.answer, ANSWERS)


class ToggleSearch(msgspec.Struct):
    """A search over toggles: all of `bisect toggles`, or one side of a step between releases."""

    name: str
    where: str
    direction: str  # revert: toggles that make it fail; enable: that make it pass
    toggles: list[str] = []  # the candidates, in order
    left_out: dict[str, str] = {}  # toggles without a search, with the reasons
    refused: dict[str, str] = {}  # the part of `left_out` that this process could not apply
    conflicts: list[list[str]] = []
    patches: dict[str, str] = {}  # of the culprits, as diffs
    minimal_sets: list[list[str]] = []  # sets that show the symptom, without a smaller one inside
    others_show_symptom: bool | None = None  # with all but the culprits; None: inconclusive
    confidence: float | None = None
    least_detectable_rate: float | None = None  # the limit below which a symptom may be missed
    cannot_tell: str = ""
    done: bool = False

    @property
    def verdict(self) -> str:
        if self.cannot_tell or not self.done:
            return "cannot tell"
        return "found" if self.minimal_sets else "none"


class BisectStep(msgspec.Struct):
    """The step of a history at which the outcome changes."""

    revisions: list[str]  # releases, or commits, the oldest first
    before: str = ""  # the last revision with the old outcome
    after: str = ""  # the first revision with the new outcome
    undecided: list[str] = []  # inconclusive revisions, each possibly the step
    cannot_tell: str = ""
    changed: list[str] = []  # toggles whose state differs: 'ID: buggy -> fixed'
    modules: list[str] = []  # SGLang's modules that differ
    suspects: list[str] = []  # the modules in the failing run's traceback
    about: str = ""  # the author, date and subject of a commit


class BisectSearch(msgspec.Struct):
    """One call of `unfix bisect` with its results."""

    id: str
    kind: Literal["toggles", "releases", "commits"]
    started: str
    symptom_command: list[str]  # the command that shows the symptom
    command: list[str] = []  # the command line of unfix
    status: RunStatus = RunStatus.RUNNING
    seconds: float = 0.0
    settings: dict[str, Any] = {}
    machine: dict[str, Any] = {}
    jobs: int = 1  # runs at a time
    is_deterministic: bool = False  # equal toggles lead to equal outcomes
    toggles: list[ToggleFacts] = []
    pinned_toggles: dict[str, str] = {}  # by id: 'applied' or 'reverted', in every run
    trials: list[BisectTrial] = []
    toggle_searches: list[ToggleSearch] = []
    step: BisectStep | None = None
    verdict: str = ""  # found, none, cannot tell
    summary: str = ""  # the verdict in a sentence

    @property
    def found(self) -> bool:
        return self.verdict == "found"
