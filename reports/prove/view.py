"""Proofs as one matrix: toggles by family down, releases across, the worst verdict in each box."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from packaging.version import InvalidVersion, Version

from harness.core.device import VIRTUAL
from harness.core.outcomes import Outcome, RunStatus, Verdict
from harness.store.prove.joined_runs import join_runs
from harness.store.prove.values import (
    BUG_OUTCOMES,
    CellResult,
    ProveKind,
    ProveRun,
    ReleaseFacts,
    SideResult,
    ToggleFacts,
    is_expected_outcome,
)
from reports.prove import marks
from reports.prove.bug_lifetime import BugLifetime, make_lifetime
from reports.prove.eval_coverage import load_eval_coverage
from reports.shared.stand_ins import describe_run_stand_ins


@dataclass(frozen=True)
class ReleaseColumn:
    """A release on a device."""

    release: str
    device: str
    label: str
    facts: ReleaseFacts

    @property
    def key(self) -> tuple[str, str]:
        return self.release, self.device


@dataclass(frozen=True)
class MatrixBox:
    """A toggle in one column: the cells of its guards, and the worst of their verdicts."""

    toggle: str
    column: ReleaseColumn
    cells: tuple[CellResult, ...]
    as_is_cells: tuple[CellResult, ...]  # from a lifecycle run beside a prove run
    evaluations: tuple[str, ...] = ()  # the matrices that plant a toggle without a guard

    @property
    def state(self) -> str:
        """The state by the sources; '' if it was not determined."""
        state = self.column.facts.states.get(self.toggle, "")
        return state or next((cell.state for cell in (*self.cells, *self.as_is_cells)), "")

    @cached_property
    def mark(self) -> str:
        if self.cells:
            word = marks.choose_worst(marks.get_verdict_word(cell.verdict) for cell in self.cells)
            return "absent" if word == "n/a" and self.state == "absent" else word
        if self.toggle in (self.column.facts.unguarded or ()):
            return "unguarded"
        if self.evaluations and self.state not in ("absent", "stale"):
            return "eval only"
        if self.expected_reason:
            return "listed"
        return self.state if self.state in ("absent", "stale") else "not run"

    @property
    def expected_reason(self) -> str:
        """The reason why no guard names the toggle, as the list of exceptions has it."""
        return self.column.facts.expected_unguarded.get(self.toggle, "")

    @property
    def counts(self) -> dict[str, int]:
        return Counter(marks.get_verdict_word(cell.verdict) for cell in self.cells)

    @property
    def seconds(self) -> float:
        return sum(cell.seconds for cell in self.cells)

    def least_reach(self, side: str) -> int | None:
        """Return the smallest reach of this side: the guard that ran the toggled code least."""
        ran = [cell for cell in self.cells if cell.verdict is not Verdict.NA]
        return min((cell.sides[side].reach for cell in ran if side in cell.sides), default=None)


@dataclass(frozen=True)
class ToggleRow:
    toggle: ToggleFacts
    boxes: tuple[MatrixBox, ...]
    lifetime: BugLifetime
    evaluations: tuple[str, ...] = ()

    @property
    def mark(self) -> str:
        return marks.choose_worst(box.mark for box in self.boxes)


@dataclass(frozen=True)
class ToggleFamily:
    name: str
    rows: tuple[ToggleRow, ...]


@dataclass(frozen=True)
class GuardTiming:
    """The time of a guard, summed over its cells."""

    guard: str
    seconds: float
    overhead: float
    cell_count: int


@dataclass(frozen=True)
class ProofView:
    runs: tuple[ProveRun, ...]  # from the oldest to the newest
    run: ProveRun  # all of them, joined
    columns: tuple[ReleaseColumn, ...]
    families: tuple[ToggleFamily, ...]

    @property
    def kind(self) -> str:
        return self.run.kind

    @property
    def rows(self) -> tuple[ToggleRow, ...]:
        return tuple(row for family in self.families for row in family.rows)

    @property
    def has_single_column(self) -> bool:
        """Whether there is one column; the guards are rows then."""
        return len(self.columns) == 1

    @property
    def releases(self) -> list[str]:
        return list(dict.fromkeys(column.release for column in self.columns))

    @property
    def release_summary(self) -> str:
        """'0.5.9, 0.5.23', or '11 releases from 0.5.9 to 0.5.23'."""
        releases = self.releases
        if len(releases) <= 4:
            return ", ".join(releases) or "no release"
        return f"{len(releases)} releases from {releases[0]} to {releases[-1]}"

    @property
    def devices(self) -> list[str]:
        return list(dict.fromkeys(column.device for column in self.columns))

    @cached_property
    def problems(self) -> list[str]:
        return self.run.problems

    @property
    def green(self) -> bool:
        return not self.problems

    @property
    def failed_cells(self) -> list[CellResult]:
        """Every cell that keeps the run from being green, the worst first."""
        bad = [cell for cell in self.run.cells if not (cell.verdict and cell.verdict.is_good)]
        order = {toggle.id: place for place, toggle in enumerate(self.run.toggles)}
        return sorted(
            bad,
            key=lambda cell: (
                marks.SEVERITY[marks.get_verdict_word(cell.verdict)],
                order.get(cell.toggle, -1),
                make_release_sort_key(cell.release),
                cell.guard,
            ),
        )

    @property
    def other_problems(self) -> list[str]:
        """The problems that are not one cell's verdict."""
        of_cells = {
            f"{cell.release}: {cell.toggle} {cell.verdict.value}: {cell.guard}"
            for cell in self.failed_cells
            if cell.verdict
        }
        return [problem for problem in self.problems if problem not in of_cells]

    @property
    def expected_unguarded(self) -> dict[str, list[str]]:
        """Toggles that no guard names, as the list of exceptions expects, by its reason."""
        reasons: dict[str, list[str]] = {}
        for column in self.columns:
            for toggle, reason in column.facts.expected_unguarded.items():
                names = reasons.setdefault(reason, [])
                names += [toggle] * (toggle not in names)
        return reasons

    @property
    def not_applicable(self) -> dict[str, list[CellResult]]:
        """Cells that are n/a, by their reason."""
        reasons: dict[str, list[CellResult]] = {}
        for cell in self.run.cells:
            if cell.verdict is Verdict.NA:
                reasons.setdefault(cell.why or "no reason given", []).append(cell)
        return reasons

    @property
    def stand_ins(self) -> str:
        """What stand-ins computed in the first runs of sides."""
        sides = [side for cell in self.run.cells for side in cell.sides.values()]
        device = VIRTUAL if VIRTUAL in self.devices else ""
        return describe_run_stand_ins(device, (side.stand_ins for side in sides))

    @property
    def slowest(self) -> list[GuardTiming]:
        by_guard: dict[str, list[CellResult]] = {}
        for cell in self.run.cells:
            by_guard.setdefault(cell.guard, []).append(cell)
        timings = [
            GuardTiming(
                guard,
                sum(cell.seconds for cell in cells),
                sum(side.overhead for cell in cells for side in cell.sides.values()),
                len(cells),
            )
            for guard, cells in by_guard.items()
        ]
        return sorted(timings, key=lambda timing: -timing.seconds - timing.overhead)


def make_release_sort_key(release: str) -> tuple[bool, Version, str]:
    """Make a key that sorts releases from the oldest; a name that is no version comes last."""
    try:
        return False, Version(release), release
    except InvalidVersion:
        return True, Version("0"), release


def sort_sides(cell: CellResult) -> list[SideResult]:
    order = [*marks.SIDE_PHRASES, *cell.sides]
    return sorted(cell.sides.values(), key=lambda side: order.index(side.side))


def choose_decisive_side(cell: CellResult) -> SideResult | None:
    """Choose the side that explains the verdict."""
    word = marks.get_verdict_word(cell.verdict)
    by_verdict = {"toothless": "buggy", "broken": "fixed", "proven": "buggy", "flaky": "buggy"}
    if by_verdict.get(word, "") in cell.sides:
        return cell.sides[by_verdict[word]]
    sides = sort_sides(cell)
    same_word = [side for side in sides if side.outcome.value == word]
    unreached = [side for side in sides if cell.verdict is Verdict.UNREACHED and not side.reach]
    with_headline = [side for side in sides if side.headline]
    return next(iter(same_word + unreached + with_headline + sides), None)


def describe_reason(cell: CellResult) -> str:
    """Describe the verdict's reason; '' if it only repeats the decisive side's headline."""
    side = choose_decisive_side(cell)
    is_repeated = side and side.headline and side.headline in cell.why
    return "" if is_repeated and cell.verdict is not Verdict.FLAKY else cell.why


def is_side_expected(cell: CellResult, side: SideResult) -> bool:
    """Return whether this side ended as it should."""
    which = cell.state if side.side == "as is" else side.side
    if which == "buggy":
        return side.outcome in BUG_OUTCOMES
    return which == "fixed" and side.outcome is Outcome.PASSED


def describe_repeats(side: SideResult) -> str:
    """Return 'Run again, it failed 3 of 3 times.'; '' if it ran once."""
    if not side.again:
        return ""
    repeated_alike = sum(is_expected_outcome(side.side, again.outcome) for again in side.again)
    ended = "failed" if side.side == "buggy" else "passed"
    return f"Run again, it {ended} {repeated_alike} of {len(side.again)} times."


def make_view(runs: ProveRun | Sequence[ProveRun]) -> ProofView:
    """Make the view: prove runs give the verdicts, lifecycle runs the lifetimes of the bugs."""
    runs = sorted([runs] if isinstance(runs, ProveRun) else runs, key=lambda run: run.started)
    kind = "prove" if any(run.kind == "prove" for run in runs) or not runs else runs[-1].kind
    main = join_runs_of_kind([run for run in runs if run.kind == kind], kind)
    lifecycle = join_runs_of_kind([run for run in runs if run.kind != kind], "lifecycle")
    columns = make_columns(main, lifecycle)
    facts = {
        cell.toggle: ToggleFacts(id=cell.toggle, title="", family="unknown", symptom="")
        for run in (lifecycle, main)
        for cell in run.cells
    }
    facts |= {toggle.id: toggle for run in (lifecycle, main) for toggle in run.toggles}
    ordered = sorted(facts.values(), key=lambda toggle: (toggle.family, toggle.id))
    rows = [make_row(toggle, columns, main, lifecycle) for toggle in ordered]
    if any({box.mark for box in row.boxes} == {"not run"} for row in rows):  # a part of all
        rows = [row for row in rows if any(box.cells for box in row.boxes)] or rows
    families: dict[str, list[ToggleRow]] = {}
    for row in rows:
        families.setdefault(row.toggle.family, []).append(row)
    grouped = tuple(ToggleFamily(name, tuple(rows)) for name, rows in families.items())
    return ProofView(tuple(runs), main, columns, grouped)


def join_runs_of_kind(runs: list[ProveRun], kind: ProveKind) -> ProveRun:
    if runs:
        return join_runs(runs)
    return ProveRun(id="", kind=kind, started="", status=RunStatus.FINISHED)


def make_row(
    toggle: ToggleFacts,
    columns: Sequence[ReleaseColumn],
    main_run: ProveRun,
    lifecycle_run: ProveRun,
) -> ToggleRow:
    cells = [cell for cell in main_run.cells if cell.toggle == toggle.id]
    as_is = [cell for cell in lifecycle_run.cells if cell.toggle == toggle.id]
    evaluations = load_eval_coverage().get(toggle.id, ())
    boxes = [
        MatrixBox(
            *(toggle.id, column),
            *(select_cells(cells, column), select_cells(as_is, column)),
            evaluations,
        )
        for column in columns
    ]
    states: dict[str, str] = {}
    for box in boxes:
        states[box.column.release] = states.get(box.column.release) or box.state
    releases = dict.fromkeys(column.release for column in columns)
    return ToggleRow(
        toggle,
        tuple(boxes),
        make_lifetime(toggle.id, releases, states, cells + as_is),
        evaluations,
    )


def select_cells(cells: Iterable[CellResult], column: ReleaseColumn) -> tuple[CellResult, ...]:
    chosen = [cell for cell in cells if (cell.release, cell.device) == column.key]
    return tuple(sorted(chosen, key=lambda cell: cell.guard))


def make_columns(main_run: ProveRun, lifecycle_run: ProveRun) -> tuple[ReleaseColumn, ...]:
    runs = lifecycle_run, main_run
    facts = {
        (cell.release, cell.device): ReleaseFacts(release=cell.release, device=cell.device)
        for run in runs
        for cell in run.cells
    }
    facts |= {(on.release, on.device): on for run in runs for on in run.releases}
    several = len({device for _, device in facts}) > 1
    keys = sorted(facts, key=lambda key: (make_release_sort_key(key[0]), key[1]))
    return tuple(
        ReleaseColumn(*key, " ".join(key) if several else key[0], facts[key]) for key in keys
    )
