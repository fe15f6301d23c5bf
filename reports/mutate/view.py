"""A mutation run as every report shows it: scores, survivors by function, the marked code."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from harness.store.mutate.faults import MutationFault
from harness.store.mutate.values import (
    FaultOutcome,
    FaultResult,
    MutationRun,
    TargetCode,
    compute_score,
)
from reports.shared import formatting
from reports.shared.formatting import ReportMark

FATE_MARKS: dict[str, ReportMark] = {
    mark.word: mark
    for mark in (
        ReportMark("survived", "SUR", "○", "toothless", "Its code ran, and no guard noticed."),
        ReportMark("unreached", "UNR", "·", "unreached", "No guard runs its code."),
        ReportMark("killed", "KIL", "✓", "good", "A guard noticed it."),
        ReportMark(
            "equal", "EQU", "=", "quiet", "It is the same as the original, for a reason kept."
        ),
        ReportMark(
            "not live", "NOT", "↯", "quiet", "Only an import can put it in: outside the score."
        ),
    )
}
DISPROVED_MARK = ReportMark(
    "untrue", "UNT", "≠", "broken", "It is said to be equal, and a guard noticed it."
)
SURVIVOR_ADVICE = (
    "its code ran under the guards named here and none of them noticed: strengthen one, "
    "or say in suites/equal_faults.yaml why nothing can notice"
)
UNREACHED_ADVICE = (
    "no guard runs its lines: a suite has to drive this code before it can notice anything"
)
# What a call of `unfix mutate` means without these options.
DEFAULT_SETTINGS: dict[str, Any] = {
    "operators": "",
    "suite": [],
    "profile": "default",
    "examples": 10,
    "toggles": [],
}


def get_mark(outcome: FaultResult) -> ReportMark:
    return DISPROVED_MARK if outcome.is_disproved_equivalent else FATE_MARKS[outcome.fate.value]


@dataclass(frozen=True)
class FaultGroup:
    """The faults of one family, function or operator."""

    name: str
    outcomes: list[FaultResult]

    @property
    def counts(self) -> dict[str, int]:
        found = Counter(fated.fate.value for fated in self.outcomes)
        return {word: found[word] for word in FATE_MARKS}

    @property
    def score(self) -> float | None:
        return compute_score(self.outcomes)

    @property
    def score_text(self) -> str:
        return format_percent(self.score)


@dataclass(frozen=True)
class MarkedLine:
    """A line of a target, with the faults that begin on it."""

    number: int
    text: str
    outcomes: list[FaultResult] = field(default_factory=list)


@dataclass(frozen=True)
class MarkedTarget:
    """A target's code."""

    code: TargetCode
    lines: list[MarkedLine]
    group: FaultGroup


@dataclass(frozen=True)
class MutationView:
    run: MutationRun
    families: list[FaultGroup]
    functions: list[FaultGroup]
    operators: list[FaultGroup]
    survivors: list[FaultGroup]  # by function
    unreached: list[FaultGroup]
    disproved: list[FaultResult]
    targets: list[MarkedTarget]
    kills_by_guard: list[tuple[str, int]]  # by guard, the most first
    kills_by_means: list[tuple[str, int]]


def make_view(run: MutationRun) -> MutationView:
    fates = run.fates
    survived = [fated for fated in fates if fated.fate is FaultOutcome.SURVIVED]
    unreached = [fated for fated in fates if fated.fate is FaultOutcome.UNREACHED]
    functions = group_faults(fates, lambda fated: fated.fault.target)
    by_target = {share.name: share for share in functions}
    return MutationView(
        run=run,
        families=group_faults(fates, lambda fated: fated.family or "no family"),
        functions=functions,
        operators=group_faults(fates, lambda fated: fated.fault.operator),
        survivors=group_faults(survived, lambda fated: fated.fault.target),
        unreached=group_faults(unreached, lambda fated: fated.fault.target),
        disproved=[fated for fated in fates if fated.is_disproved_equivalent],
        targets=[
            _mark_target(code, by_target[code.target])
            for code in run.codes
            if code.target in by_target
        ],
        kills_by_guard=Counter(
            shorten_guard_name(fated.by) for fated in fates if fated.by
        ).most_common(),
        kills_by_means=Counter(fated.how.value for fated in fates if fated.how).most_common(),
    )


def group_faults(
    outcomes: Iterable[FaultResult], get_group_name: Callable[[FaultResult], str]
) -> list[FaultGroup]:
    found: dict[str, list[FaultResult]] = {}
    for fated in outcomes:
        found.setdefault(get_group_name(fated), []).append(fated)
    return [FaultGroup(name, found[name]) for name in sorted(found)]


def _mark_target(code: TargetCode, group: FaultGroup) -> MarkedTarget:
    by_line: dict[int, list[FaultResult]] = {}
    for fated in group.outcomes:
        by_line.setdefault(fated.fault.line, []).append(fated)
    lines = [
        MarkedLine(number, text, by_line.get(number, []))
        for number, text in enumerate(code.text.split("\n"), code.first)
    ]
    return MarkedTarget(code, lines, group)


def format_percent(value: float | None) -> str:
    return "none reached" if value is None else f"{value:.1f} %"


def shorten_guard_name(guard: str) -> str:
    return guard.rpartition("::")[2].removeprefix("test_")


def describe_change(fault: MutationFault) -> str:
    return f"{shorten_code(fault.before)} → {shorten_code(fault.after)}"


def shorten_code(code: str, max_length: int = 60) -> str:
    line = " ".join(code.split()) or "nothing"
    return line if len(line) <= max_length else f"{line[: max_length - 1]}…"


def describe_outcome(outcome: FaultResult) -> str:
    """Why a fault is not killed, or what killed it, in a sentence."""
    if outcome.fate is FaultOutcome.KILLED:
        how = outcome.how.value if outcome.how else ""
        return f"{how}: {shorten_guard_name(outcome.by)}: {outcome.headline}"
    if outcome.fate is FaultOutcome.SURVIVED:
        names = ", ".join(shorten_guard_name(guard) for guard in outcome.passed)
        longer = ", then with many more examples" if outcome.longer else ""
        return f"ran {outcome.ran} times; passed by {names}{longer}"
    return outcome.why


def make_replay_command(run: MutationRun, outcome: FaultResult) -> str:
    """The command that runs a fault alone, asked as the run was."""
    return _make_command(run, outcome, ("operators", "suite", "profile", "examples"), "--fault")


def make_keep_command(run: MutationRun, outcome: FaultResult) -> str:
    """The command that makes a fault a toggle."""
    return _make_command(run, outcome, ("operators",), "--keep")


def _make_command(
    run: MutationRun, outcome: FaultResult, setting_names: tuple[str, ...], option: str
) -> str:
    settings = DEFAULT_SETTINGS | {"release": run.release} | run.settings
    words = ["unfix", "mutate", outcome.fault.target]
    for name in ("release", *setting_names, "toggles"):
        value = settings[name]
        if value != DEFAULT_SETTINGS.get(name):
            each = value if isinstance(value, list) else [value]
            words += [word for one in each for word in (f"--{name}", str(one))]
    return shlex.join([*words, option, outcome.fault.id])


def describe_run(run: MutationRun) -> str:
    """A run in one sentence."""
    counts = run.counts
    reached = counts.get("killed", 0) + counts.get("survived", 0)
    told = ", ".join(f"{count} {word}" for word, count in counts.items()) or "no faults"
    return (
        f"{format_percent(run.score)} of {reached} reached faults killed on SGLang {run.release} "
        f"({told}; {formatting.format_duration(run.seconds)})"
    )
