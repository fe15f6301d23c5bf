"""Runs as one table: toggles by family down, releases across, and the worst verdict in each box."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from packaging.version import InvalidVersion, Version

from harness.prove.verdicts import TELLING, holds
from harness.store.prove.together import together
from harness.store.prove.values import Cell, OnRelease, Outcome, Run, Side, ToggleFacts, Verdict
from reports.prove.life import Life, life
from reports.shared import texts


@dataclass(frozen=True)
class Column:
    """A release on a device."""

    release: str
    device: str
    label: str
    on: OnRelease

    @property
    def key(self) -> tuple[str, str]:
        return self.release, self.device


@dataclass(frozen=True)
class Box:
    """A toggle in one column: its guards' cells, and the worst that they came to."""

    toggle: str
    column: Column
    cells: tuple[Cell, ...]
    as_is: tuple[Cell, ...]  # from a lifecycle run beside a prove run

    @property
    def state(self) -> str:
        """What the sources say; '' where nobody looked."""
        said = self.column.on.states.get(self.toggle, "")
        return said or next((cell.state for cell in (*self.cells, *self.as_is)), "")

    @cached_property
    def mark(self) -> str:
        if self.cells:
            word = texts.worst(texts.word_of(cell.verdict) for cell in self.cells)
            return "absent" if word == "n/a" and self.state == "absent" else word
        if self.toggle in (self.column.on.unguarded or ()):
            return "unguarded"
        if self.toggle in self.column.on.known_unguarded:
            return "no suite yet"
        return self.state if self.state in ("absent", "stale") else "not run"

    @property
    def counts(self) -> dict[str, int]:
        return count(texts.word_of(cell.verdict) for cell in self.cells)

    @property
    def seconds(self) -> float:
        return sum(cell.seconds for cell in self.cells)

    def least_reach(self, side: str) -> int | None:
        """The smallest reach of this side: the weakest of what was shown."""
        ran = [cell for cell in self.cells if cell.verdict is not Verdict.NA]
        reached = [cell.sides[side].reach for cell in ran if side in cell.sides]
        return min(reached) if reached else None


@dataclass(frozen=True)
class Row:
    toggle: ToggleFacts
    boxes: tuple[Box, ...]
    life: Life

    @property
    def mark(self) -> str:
        return texts.worst(box.mark for box in self.boxes)


@dataclass(frozen=True)
class Family:
    name: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Slow:
    """A guard and what it took, over all of its cells."""

    guard: str
    seconds: float
    overhead: float
    cells: int


@dataclass(frozen=True)
class View:
    runs: tuple[Run, ...]  # from the oldest to the newest
    run: Run  # of all of them, merged
    columns: tuple[Column, ...]
    families: tuple[Family, ...]

    @property
    def kind(self) -> str:
        return self.run.kind

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(row for family in self.families for row in family.rows)

    @property
    def single(self) -> bool:
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
    def not_good(self) -> list[Cell]:
        """Every cell that keeps the run from being green, the worst first."""
        bad = [cell for cell in self.run.cells if not (cell.verdict and cell.verdict.good)]
        order = {toggle.id: place for place, toggle in enumerate(self.run.toggles)}
        return sorted(
            bad,
            key=lambda cell: (
                texts.SEVERITY[texts.word_of(cell.verdict)],
                order.get(cell.toggle, -1),
                age(cell.release),
                cell.guard,
            ),
        )

    @property
    def other_problems(self) -> list[str]:
        """The problems that are not one cell's verdict."""
        bad = [c for c in self.run.cells if c.verdict and not c.verdict.good]
        told = {f"{c.release}: {c.toggle} {texts.word_of(c.verdict)}: {c.guard}" for c in bad}
        return [problem for problem in self.problems if problem not in told]

    @property
    def known_unguarded(self) -> list[str]:
        """Toggles of these releases that no suite reaches yet, as their files say."""
        return sorted({name for column in self.columns for name in column.on.known_unguarded})

    @property
    def not_applicable(self) -> dict[str, list[Cell]]:
        """Cells that are n/a, by their reason."""
        reasons: dict[str, list[Cell]] = {}
        for cell in self.run.cells:
            if cell.verdict is Verdict.NA:
                reasons.setdefault(cell.why or "no reason given", []).append(cell)
        return reasons

    @property
    def slowest(self) -> list[Slow]:
        by_guard: dict[str, list[Cell]] = {}
        for cell in self.run.cells:
            by_guard.setdefault(cell.guard, []).append(cell)
        slow = [
            Slow(guard, sum(c.seconds for c in cells), sum(map(overhead, cells)), len(cells))
            for guard, cells in by_guard.items()
        ]
        return sorted(slow, key=lambda guard: -guard.seconds - guard.overhead)


def overhead(cell: Cell) -> float:
    return sum(side.overhead for side in cell.sides.values())


def count(words: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for word in words:
        found[word] = found.get(word, 0) + 1
    return found


def age(release: str) -> tuple[bool, Version, str]:
    """A key that sorts releases from the oldest; what is no version comes last."""
    try:
        return False, Version(release), release
    except InvalidVersion:
        return True, Version("0"), release


def sides(cell: Cell) -> list[Side]:
    order = {name: place for place, name in enumerate(texts.SIDE_ORDER)}
    return sorted(cell.sides.values(), key=lambda side: order.get(side.side, len(order)))


def telling(cell: Cell) -> Side | None:
    """The side that says why the verdict is what it is."""
    wanted = {"toothless": "buggy", "broken": "fixed", "proven": "buggy", "flaky": "buggy"}
    name = wanted.get(texts.word_of(cell.verdict), "")
    if name in cell.sides:
        return cell.sides[name]
    there = sides(cell)
    named = [side for side in there if side.outcome.value == texts.word_of(cell.verdict)]
    unreached = [side for side in there if cell.verdict is Verdict.UNREACHED and not side.reach]
    speaking = [side for side in there if side.headline]
    return next(iter(named + unreached + speaking + there), None)


def reason(cell: Cell) -> str:
    """Why the verdict is what it is, where the telling side's headline does not say it already."""
    side = telling(cell)
    said = side and side.headline and side.headline in cell.why
    return "" if said and cell.verdict is not Verdict.FLAKY else cell.why


def right(cell: Cell, side: Side) -> bool:
    """Whether this side ended as it should."""
    which = cell.state if side.side == "as is" else side.side
    if which == "buggy":
        return side.outcome in TELLING
    return which == "fixed" and side.outcome is Outcome.PASSED


def repeated(side: Side) -> str:
    """'Run again, it failed 3 of 3 times.'; nothing if it was run once."""
    if not side.again:
        return ""
    same = sum(holds(side.side, again.outcome) for again in side.again)
    ended = "failed" if side.side == "buggy" else "passed"
    return f"Run again, it {ended} {same} of {len(side.again)} times."


def make(runs: Run | Sequence[Run]) -> View:
    """Prove runs give the verdicts, lifecycle runs beside them the lives."""
    given = [runs] if isinstance(runs, Run) else list(runs)
    given.sort(key=lambda run: run.started)
    kind = "prove" if any(run.kind == "prove" for run in given) or not given else given[-1].kind
    main = joined([run for run in given if run.kind == kind], kind)
    beside = joined([run for run in given if run.kind != kind], "lifecycle")
    columns = make_columns(main, beside)
    facts = {toggle.id: toggle for run in (beside, main) for toggle in run.toggles}
    named = [c.toggle for run in (beside, main) for c in run.cells if c.toggle not in facts]
    for toggle in dict.fromkeys(named):
        facts[toggle] = ToggleFacts(id=toggle, title="", family="unknown", symptom="")
    families: dict[str, list[Row]] = {}
    for toggle_facts in sorted(facts.values(), key=lambda toggle: (toggle.family, toggle.id)):
        row = make_row(toggle_facts, columns, main, beside)
        families.setdefault(toggle_facts.family, []).append(row)
    grouped = tuple(Family(name, tuple(rows)) for name, rows in families.items())
    return View(tuple(given), main, columns, grouped)


def joined(runs: list[Run], kind: str) -> Run:
    return together(runs) if runs else Run(id="", kind=kind, started="", status="finished")


def make_row(toggle: ToggleFacts, columns: Sequence[Column], main: Run, beside: Run) -> Row:
    cells = [cell for cell in main.cells if cell.toggle == toggle.id]
    as_is = [cell for cell in beside.cells if cell.toggle == toggle.id]
    boxes = [Box(toggle.id, column, at(cells, column), at(as_is, column)) for column in columns]
    states: dict[str, str] = {}
    for box in boxes:
        states[box.column.release] = states.get(box.column.release) or box.state
    releases = dict.fromkeys(column.release for column in columns)
    return Row(toggle, tuple(boxes), life(toggle.id, releases, states, cells + as_is))


def at(cells: Iterable[Cell], column: Column) -> tuple[Cell, ...]:
    found = [cell for cell in cells if (cell.release, cell.device) == column.key]
    return tuple(sorted(found, key=lambda cell: cell.guard))


def make_columns(main: Run, beside: Run) -> tuple[Column, ...]:
    known = {(on.release, on.device): on for run in (beside, main) for on in run.releases}
    for cell in (*main.cells, *beside.cells):
        key = cell.release, cell.device
        known.setdefault(key, OnRelease(release=cell.release, device=cell.device))
    several = len({device for _, device in known}) > 1
    keys = sorted(known, key=lambda key: (age(key[0]), key[1]))
    return tuple(
        Column(
            release, device, f"{release} {device}" if several else release, known[release, device]
        )
        for release, device in keys
    )
