"""Runs as one table: toggles by family down, releases across, and the worst verdict in each box."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from packaging.version import InvalidVersion, Version

from harness.runs.prove.verdicts import BUG_OUTCOMES, is_expected_outcome
from harness.store.prove.joined_runs import join_runs
from harness.store.prove.values import (
    CellResult,
    CellVerdict,
    ProveRun,
    ReleaseFacts,
    SideOutcome,
    SideResult,
    ToggleFacts,
)
from reports.prove.bug_lifetime import BugLifetime, make_lifetime
from reports.shared import formatting


@dataclass(frozen=True)
class ReleaseColumn:
    """A release on a device."""

    release: str
    device: str
    label: str
    release_run: ReleaseFacts

    @property
    def key(self) -> tuple[str, str]:
        return self.release, self.device


@dataclass(frozen=True)
class MatrixBox:
    """A toggle in one column: its guards' cells, and the worst that they came to."""

    toggle: str
    column: ReleaseColumn
    cells: tuple[CellResult, ...]
    as_is_cells: tuple[CellResult, ...]  # from a lifecycle run beside a prove run

    @property
    def state(self) -> str:
        """What the sources say; '' where nobody looked."""
        said = self.column.release_run.states.get(self.toggle, "")
        return said or next((cell.state for cell in (*self.cells, *self.as_is_cells)), "")

    @cached_property
    def mark(self) -> str:
        if self.cells:
            word = formatting.choose_worst(
                formatting.get_verdict_word(cell.verdict) for cell in self.cells
            )
            return "absent" if word == "n/a" and self.state == "absent" else word
        if self.toggle in (self.column.release_run.unguarded or ()):
            return "unguarded"
        if self.toggle in self.column.release_run.known_unguarded:
            return "no suite yet"
        return self.state if self.state in ("absent", "stale") else "not run"

    @property
    def counts(self) -> dict[str, int]:
        return count_words(formatting.get_verdict_word(cell.verdict) for cell in self.cells)

    @property
    def seconds(self) -> float:
        return sum(cell.seconds for cell in self.cells)

    def least_reach(self, side: str) -> int | None:
        """The smallest reach of this side: the weakest of what was shown."""
        ran = [cell for cell in self.cells if cell.verdict is not CellVerdict.NA]
        reached = [cell.sides[side].reach for cell in ran if side in cell.sides]
        return min(reached) if reached else None


@dataclass(frozen=True)
class ToggleRow:
    toggle: ToggleFacts
    boxes: tuple[MatrixBox, ...]
    lifetime: BugLifetime

    @property
    def mark(self) -> str:
        return formatting.choose_worst(box.mark for box in self.boxes)


@dataclass(frozen=True)
class ToggleFamily:
    name: str
    rows: tuple[ToggleRow, ...]


@dataclass(frozen=True)
class GuardTiming:
    """A guard and what it took, over all of its cells."""

    guard: str
    seconds: float
    overhead: float
    cell_count: int


@dataclass(frozen=True)
class ProofView:
    runs: tuple[ProveRun, ...]  # from the oldest to the newest
    run: ProveRun  # of all of them, merged
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
        """One column only: the guards are rows of their own."""
        return len(self.columns) == 1

    @property
    def releases(self) -> list[str]:
        return list(dict.fromkeys(column.release for column in self.columns))

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
                formatting.SEVERITY[formatting.get_verdict_word(cell.verdict)],
                order.get(cell.toggle, -1),
                make_release_sort_key(cell.release),
                cell.guard,
            ),
        )

    @property
    def other_problems(self) -> list[str]:
        """The problems that are not one cell's verdict."""
        bad = [c for c in self.run.cells if c.verdict and not c.verdict.is_good]
        told = {
            f"{c.release}: {c.toggle} {formatting.get_verdict_word(c.verdict)}: {c.guard}"
            for c in bad
        }
        return [problem for problem in self.problems if problem not in told]

    @property
    def known_unguarded(self) -> list[str]:
        """Toggles of these releases that no suite reaches yet, as their files say."""
        return sorted(
            {name for column in self.columns for name in column.release_run.known_unguarded}
        )

    @property
    def not_applicable(self) -> dict[str, list[CellResult]]:
        """Cells that are n/a, by their reason."""
        reasons: dict[str, list[CellResult]] = {}
        for cell in self.run.cells:
            if cell.verdict is CellVerdict.NA:
                reasons.setdefault(cell.why or "no reason given", []).append(cell)
        return reasons

    @property
    def slowest(self) -> list[GuardTiming]:
        by_guard: dict[str, list[CellResult]] = {}
        for cell in self.run.cells:
            by_guard.setdefault(cell.guard, []).append(cell)
        slow = [
            GuardTiming(
                guard, sum(c.seconds for c in cells), sum(map(sum_overhead, cells)), len(cells)
            )
            for guard, cells in by_guard.items()
        ]
        return sorted(slow, key=lambda guard: -guard.seconds - guard.overhead)


def sum_overhead(cell: CellResult) -> float:
    return sum(side.overhead for side in cell.sides.values())


def count_words(words: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for word in words:
        found[word] = found.get(word, 0) + 1
    return found


def make_release_sort_key(release: str) -> tuple[bool, Version, str]:
    """A key that sorts releases from the oldest; what is no version comes last."""
    try:
        return False, Version(release), release
    except InvalidVersion:
        return True, Version("0"), release


def sort_sides(cell: CellResult) -> list[SideResult]:
    order = {name: place for place, name in enumerate(formatting.SIDE_ORDER)}
    return sorted(cell.sides.values(), key=lambda side: order.get(side.side, len(order)))


def choose_decisive_side(cell: CellResult) -> SideResult | None:
    """The side that says why the verdict is what it is."""
    wanted = {"toothless": "buggy", "broken": "fixed", "proven": "buggy", "flaky": "buggy"}
    name = wanted.get(formatting.get_verdict_word(cell.verdict), "")
    if name in cell.sides:
        return cell.sides[name]
    there = sort_sides(cell)
    named = [
        side for side in there if side.outcome.value == formatting.get_verdict_word(cell.verdict)
    ]
    unreached = [side for side in there if cell.verdict is CellVerdict.UNREACHED and not side.reach]
    speaking = [side for side in there if side.headline]
    return next(iter(named + unreached + speaking + there), None)


def describe_reason(cell: CellResult) -> str:
    """Why the verdict is what it is, where the telling side's headline does not say it already."""
    side = choose_decisive_side(cell)
    said = side and side.headline and side.headline in cell.why
    return "" if said and cell.verdict is not CellVerdict.FLAKY else cell.why


def is_side_expected(cell: CellResult, side: SideResult) -> bool:
    """Whether this side ended as it should."""
    which = cell.state if side.side == "as is" else side.side
    if which == "buggy":
        return side.outcome in BUG_OUTCOMES
    return which == "fixed" and side.outcome is SideOutcome.PASSED


def describe_repeats(side: SideResult) -> str:
    """'Run again, it failed 3 of 3 times.'; nothing if it was run once."""
    if not side.again:
        return ""
    same = sum(is_expected_outcome(side.side, again.outcome) for again in side.again)
    ended = "failed" if side.side == "buggy" else "passed"
    return f"Run again, it {ended} {same} of {len(side.again)} times."


def make_view(runs: ProveRun | Sequence[ProveRun]) -> ProofView:
    """Prove runs give the verdicts, lifecycle runs beside them the lives."""
    given = [runs] if isinstance(runs, ProveRun) else list(runs)
    given.sort(key=lambda run: run.started)
    kind = "prove" if any(run.kind == "prove" for run in given) or not given else given[-1].kind
    main = join_runs_of_kind([run for run in given if run.kind == kind], kind)
    beside = join_runs_of_kind([run for run in given if run.kind != kind], "lifecycle")
    columns = make_columns(main, beside)
    facts = {toggle.id: toggle for run in (beside, main) for toggle in run.toggles}
    named = [c.toggle for run in (beside, main) for c in run.cells if c.toggle not in facts]
    for toggle in dict.fromkeys(named):
        facts[toggle] = ToggleFacts(id=toggle, title="", family="unknown", symptom="")
    families: dict[str, list[ToggleRow]] = {}
    for toggle_facts in sorted(facts.values(), key=lambda toggle: (toggle.family, toggle.id)):
        row = make_row(toggle_facts, columns, main, beside)
        families.setdefault(toggle_facts.family, []).append(row)
    grouped = tuple(ToggleFamily(name, tuple(rows)) for name, rows in families.items())
    return ProofView(tuple(given), main, columns, grouped)


def join_runs_of_kind(runs: list[ProveRun], kind: str) -> ProveRun:
    return join_runs(runs) if runs else ProveRun(id="", kind=kind, started="", status="finished")


def make_row(
    toggle: ToggleFacts,
    columns: Sequence[ReleaseColumn],
    main_run: ProveRun,
    lifecycle_run: ProveRun,
) -> ToggleRow:
    cells = [cell for cell in main_run.cells if cell.toggle == toggle.id]
    as_is = [cell for cell in lifecycle_run.cells if cell.toggle == toggle.id]
    boxes = [
        MatrixBox(toggle.id, column, select_cells(cells, column), select_cells(as_is, column))
        for column in columns
    ]
    states: dict[str, str] = {}
    for box in boxes:
        states[box.column.release] = states.get(box.column.release) or box.state
    releases = dict.fromkeys(column.release for column in columns)
    return ToggleRow(
        toggle, tuple(boxes), make_lifetime(toggle.id, releases, states, cells + as_is)
    )


def select_cells(cells: Iterable[CellResult], column: ReleaseColumn) -> tuple[CellResult, ...]:
    found = [cell for cell in cells if (cell.release, cell.device) == column.key]
    return tuple(sorted(found, key=lambda cell: cell.guard))


def make_columns(main_run: ProveRun, lifecycle_run: ProveRun) -> tuple[ReleaseColumn, ...]:
    known = {
        (on.release, on.device): on for run in (lifecycle_run, main_run) for on in run.releases
    }
    for cell in (*main_run.cells, *lifecycle_run.cells):
        key = cell.release, cell.device
        known.setdefault(key, ReleaseFacts(release=cell.release, device=cell.device))
    several = len({device for _, device in known}) > 1
    keys = sorted(known, key=lambda key: (make_release_sort_key(key[0]), key[1]))
    return tuple(
        ReleaseColumn(
            release, device, f"{release} {device}" if several else release, known[release, device]
        )
        for release, device in keys
    )
