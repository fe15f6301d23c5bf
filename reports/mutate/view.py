"""A mutation run as every report shows it: scores, survivors by function, the marked code."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.core.outcomes import Verdict
from harness.core.wording import format_count, format_duration
from harness.store.mutate.values import (
    NO_EVIDENCE_OUTCOMES,
    REACHED_OUTCOMES,
    FaultResult,
    MutationRun,
    TargetCode,
    compute_score,
)
from reports.shared.marks import ReportMark, make_marks
from reports.shared.stand_ins import describe_run_stand_ins
from reports.shared.tables import ReportTable, TableCell, TableRows, make_code_cell

FATE_MARKS = make_marks("""
    survived      | SUR | ○ | toothless | Its code ran, and no guard detected it.
    refused       | REF | ∅ | toothless | A checker, a stand-in or a fixture could not follow it.
    hang          | HAN | ∞ | toothless | A guard did not end, twice.
    out-of-memory | OOM | ▲ | toothless | A guard lacked memory.
    lost          | LOS | ? | toothless | The machine failed a guard's process.
    unreached     | UNR | · | unreached | No guard runs its code.
    killed        | KIL | ✓ | good      | A guard detected it.
    equal         | EQU | = | quiet     | It is equivalent to the original, for a recorded reason.
    not live      | NOT | ↯ | quiet     | Only an import can apply it: outside the score.
""")
DISPROVED_MARK = ReportMark(
    "untrue", "UNT", "≠", "broken", "It is recorded as equivalent, and a guard detected it."
)
SURVIVOR_ADVICE = (
    "its code ran under the guards named here and none of them detected it: strengthen one, "
    "or write in suites/equal_faults.yaml why no test can detect it"
)
UNREACHED_ADVICE = (
    "no guard runs its lines: a suite has to drive this code before it can detect a fault"
)
NO_EVIDENCE_ADVICE = (
    "a guard ended otherwise than by a failure, so nothing is known of its result: build the "
    "fixture fuller, or check what the fault changes by another guard"
)
# The defaults of the options of `unfix mutate`.
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
    results: list[FaultResult]

    @property
    def counts(self) -> dict[str, int]:
        counts = Counter(result.fate.value for result in self.results)
        return {word: counts[word] for word in FATE_MARKS}

    @property
    def score(self) -> float | None:
        return compute_score(self.results)

    @property
    def score_text(self) -> str:
        return format_percent(self.score)


@dataclass(frozen=True)
class MarkedLine:
    """A line of a target, with the faults that begin on it."""

    number: int
    text: str
    results: list[FaultResult] = field(default_factory=list)


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
    without_evidence: list[FaultGroup]  # refused, hanging, out of memory, lost
    unreached: list[FaultGroup]
    targets: list[MarkedTarget]
    kills_by_guard: list[tuple[str, int]]  # by guard, the most first
    kills_by_means: list[tuple[str, int]]

    @property
    def stand_ins(self) -> str:
        """What stand-ins computed in guards, without a fault and with each; not in repetitions."""
        calls = [guard.stand_ins for guard in self.run.guards]
        calls += [result.stand_ins for result in self.run.fates]
        return describe_run_stand_ins(self.run.settings.get("device", ""), calls)


def make_view(run: MutationRun) -> MutationView:
    results = run.fates
    functions = group_faults(results, lambda result: result.fault.target)
    by_target = {group.name: group for group in functions}

    def group_by_function(*outcomes: Verdict) -> list[FaultGroup]:
        chosen = [result for result in results if result.fate in outcomes]
        return group_faults(chosen, lambda result: result.fault.target)

    return MutationView(
        run=run,
        families=group_faults(results, lambda result: result.family or "no family"),
        functions=functions,
        operators=group_faults(results, lambda result: result.fault.operator),
        survivors=group_by_function(Verdict.SURVIVED),
        without_evidence=group_by_function(*NO_EVIDENCE_OUTCOMES),
        unreached=group_by_function(Verdict.UNREACHED),
        targets=[
            _mark_target(code, by_target[code.target])
            for code in run.codes
            if code.target in by_target
        ],
        kills_by_guard=Counter(
            shorten_guard_name(result.by) for result in results if result.by
        ).most_common(),
        kills_by_means=Counter(result.how.value for result in results if result.how).most_common(),
    )


def group_faults(
    results: Iterable[FaultResult], get_group_name: Callable[[FaultResult], str]
) -> list[FaultGroup]:
    groups: dict[str, list[FaultResult]] = {}
    for result in results:
        groups.setdefault(get_group_name(result), []).append(result)
    return [FaultGroup(name, groups[name]) for name in sorted(groups)]


def make_score_table(title: str, groups: Sequence[FaultGroup]) -> ReportTable:
    """Make a row for each group: its score, and the count of each outcome."""
    heads = [f"{mark.glyph} {word}" for word, mark in FATE_MARKS.items()]
    rows: TableRows = []
    for group in groups:
        tone = "toothless" if group.counts["survived"] else ""
        counts = [str(count or "") for count in group.counts.values()]
        rows.append([make_code_cell(group.name), TableCell(group.score_text, tone), *counts])
    return ReportTable(
        f"By {title}", (title, "killed of reached", *heads), rows, ("killed of reached", *heads)
    )


def make_guard_table(run: MutationRun) -> ReportTable:
    rows: TableRows = [
        [
            make_code_cell(guard.guard),
            f"{guard.outcome}: {guard.headline}" if guard.headline else guard.outcome,
            f"{guard.seconds:.1f}",
        ]
        for guard in run.guards
    ]
    heads = ("guard", "without a fault", "seconds, recorded")
    return ReportTable("Guards", heads, rows, ("seconds, recorded",))


def _mark_target(target_code: TargetCode, group: FaultGroup) -> MarkedTarget:
    by_line: dict[int, list[FaultResult]] = {}
    for result in group.results:
        by_line.setdefault(result.fault.line, []).append(result)
    lines = [
        MarkedLine(number, text, by_line.get(number, []))
        for number, text in enumerate(target_code.text.split("\n"), target_code.first)
    ]
    return MarkedTarget(target_code, lines, group)


def format_percent(value: float | None) -> str:
    return "none reached" if value is None else f"{value:.1f} %"


def shorten_guard_name(guard: str) -> str:
    return guard.rpartition("::")[2].removeprefix("test_")


def describe_outcome(outcome: FaultResult) -> str:
    """Describe in a sentence why a fault is alive, or how it was killed."""
    if outcome.fate is Verdict.KILLED:
        how = outcome.how.value if outcome.how else ""
        return f"{how}: {shorten_guard_name(outcome.by)}: {outcome.headline}"
    if outcome.fate is Verdict.SURVIVED:
        names = ", ".join(shorten_guard_name(guard) for guard in outcome.passed)
        longer = ", then with many more examples" if outcome.longer else ""
        return f"ran {outcome.ran} times; passed by {names}{longer}"
    return outcome.why


def make_replay_command(run: MutationRun, outcome: FaultResult) -> str:
    """Make the command that runs a fault alone, with the settings of the run."""
    return _make_command(run, outcome, ("operators", "suite", "profile", "examples"), "--fault")


def make_keep_command(run: MutationRun, outcome: FaultResult) -> str:
    """Make the command that turns a fault into a toggle."""
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
            words += [word for text in each for word in (f"--{name}", str(text))]
    return shlex.join([*words, option, outcome.fault.id])


def describe_run(run: MutationRun) -> str:
    """Describe a run in one sentence."""
    counts = run.counts
    reached = sum(counts.get(outcome.value, 0) for outcome in REACHED_OUTCOMES)
    details = [f"{count} {word}" for word, count in counts.items()]
    details.append(format_duration(run.seconds))
    killed = (
        f"{format_percent(run.score)} of {format_count(reached, 'reached fault')} killed"
        if reached
        else "no guard reaches any of the faults"
        if run.fates
        else "no fault was run"
    )
    return f"{killed} on SGLang {run.release} ({', '.join(details)})"
