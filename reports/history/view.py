"""A history as every report shows it: failures and since when, flakiness, cost."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from harness.core.outcomes import Verdict
from harness.core.wording import format_count, format_duration
from harness.runs.history.resource_prices import SECONDS_PER_HOUR, ResourcePrices
from harness.runs.history.timelines import list_night_states
from harness.runs.history.values import NightHistory, RunVersions, Timeline, TimelineState
from reports.shared.formatting import to_single_line
from reports.shared.marks import ReportMark, make_marks

STATE_MARKS = {
    TimelineState(word): mark
    for word, mark in make_marks("""
        new     | NEW | ✕ | broken    | Failed in the newest night, and never before.
        back    | BCK | ↺ | death     | Failed again, after it had failed and passed.
        known   | KNW | ● | toothless | Failed, as it did the time before.
        flaky   | FLK | ≈ | unreached | Failed, and passed when it was run again.
        known bug | BUG | ◐ | bug   | The release has this bug: with its fix applied, it passes.
        not run | NRN | ? | missing   | Failed when last run; the newest night did not run it.
        mended  | MND | ✓ | fix       | Failed in this window, and passed in the newest night.
        ok      | ok  | · | good      | Nothing was wrong.
        idle    | idl |   | quiet     | Passed when last run; the newest night did not run it.
    """).items()
}
SILENT_MARK = ReportMark("silent", "sil", "-", "quiet", "It ran, and its outcome says nothing.")
MAX_ROWS = 40  # rows of the grid and of a table
MAX_COSTLY_ROWS = 12
FAILING_STATES = (TimelineState.NEW, TimelineState.BACK, TimelineState.KNOWN, TimelineState.NOT_RUN)


@dataclass(frozen=True)
class HistoryView:
    history: NightHistory
    prices: ResourcePrices
    pages: Set[str] = frozenset()  # ids of runs whose pages stand beside this one

    def find_page(self, line: Timeline) -> str:
        """Return the page of the run that failed last, else of the newest; '' if it has none."""
        place = line.points[-1].night_index if line.last_failed is None else line.last_failed
        points = [point for point in line.points if point.night_index <= place]
        run_id = points[-1].main_observation.run_id
        return f"{run_id}.html" if run_id in self.pages else ""

    @property
    def days(self) -> list[str]:
        return [night.day.isoformat() for night in self.history.nights]

    @property
    def counts(self) -> list[tuple[ReportMark, int]]:
        counts = self.history.counts
        order = (
            *FAILING_STATES,
            TimelineState.FLAKY,
            TimelineState.KNOWN_BUG,
            TimelineState.MENDED,
            TimelineState.OK,
            TimelineState.IDLE,
        )
        return [(STATE_MARKS[state], counts[state]) for state in order if counts[state]]

    @property
    def failing(self) -> list[Timeline]:
        return self.history.select_by_state(*FAILING_STATES)

    @property
    def known_bugs(self) -> list[Timeline]:
        return self.history.select_by_state(TimelineState.KNOWN_BUG)

    @property
    def failed_lines(self) -> list[Timeline]:
        """The items that failed, the most important first."""
        return [line for line in self.history.timelines if line.first_failed is not None]

    @property
    def flaky(self) -> list[Timeline]:
        lines = [line for line in self.history.timelines if line.is_flaky]
        return sorted(lines, key=lambda line: -line.score.share)

    @property
    def costliest(self) -> list[Timeline]:
        return sorted(
            (line for line in self.history.timelines if sum_usage(line)),
            key=lambda line: -self.compute_cost(line),
        )[:MAX_COSTLY_ROWS]

    @property
    def slower(self) -> list[Timeline]:
        lines = [line for line in self.history.timelines if line.slowdown]
        return sorted(lines, key=lambda line: -(line.slowdown or 0))

    @property
    def slower_or_costliest(self) -> list[Timeline]:
        """The items that became slower, then the costliest."""
        slower = self.slower[:MAX_COSTLY_ROWS]
        return slower + [line for line in self.costliest if line not in slower]

    @property
    def statement(self) -> str:
        counts = self.history.counts
        fresh = counts[TimelineState.NEW] + counts[TimelineState.BACK]
        known = counts[TimelineState.KNOWN]
        night = self.history.nights[-1].day.isoformat()
        if fresh:
            also = f", and {format_count(known, 'known failure')}" if known else ""
            return f"{format_count(fresh, 'new failure')} in the night of {night}{also}."
        if known:
            return f"Nothing new in the night of {night}; {format_count(known, 'known failure')}."
        if counts[TimelineState.NOT_RUN]:
            open_ = format_count(counts[TimelineState.NOT_RUN], "earlier failure")
            return f"Nothing failed in the night of {night}, and {open_} was not run."
        if bugs := counts[TimelineState.KNOWN_BUG]:
            bug_count = format_count(bugs, "known bug")
            return f"Nothing failed in the night of {night} but for {bug_count}."
        return f"Nothing failed in the night of {night}."

    @property
    def problems(self) -> list[str]:
        """Problems of the window itself, such as a night that was stopped."""
        problems = list(self.history.notes)
        for night in self.history.nights:
            if night.stopped:
                names = ", ".join(to_single_line(name, 60) for name in night.stopped[:4])
                more = f" and {len(night.stopped) - 4} more" if len(night.stopped) > 4 else ""
                problems.append(f"{night.day.isoformat()}: not run to the end: {names}{more}")
        if unpriced := self.unpriced:
            problems.append(f"no --price for {', '.join(unpriced)}: shown in hours, and in no sum")
        return problems

    # Costs

    @property
    def unpriced(self) -> list[str]:
        if not self.prices.per_hour:
            return []
        used = {
            resource
            for night in self.history.nights
            for usage in night.spent.values()
            for resource in usage
        }
        return sorted(name for name in used if self.prices.find_price(name) is None)

    def compute_cost(self, line: Timeline) -> float:
        """Compute a sort key: money if there are prices, else seconds."""
        resource, seconds = sum_usage(line) or ("cpu", 0.0)
        if not self.prices.per_hour:
            return seconds
        return self.prices.compute_cost(resource, seconds) or 0.0

    def describe_cost(self, line: Timeline) -> str:
        return self.describe_usage(*(sum_usage(line) or ("cpu", 0.0)))

    def describe_usage(self, resource: str, seconds: float) -> str:
        money = self.prices.compute_cost(resource, seconds)
        name = "" if resource == "cpu" else f" {to_single_line(resource, 30)}"
        took = f"{format_duration(seconds)}{name}"
        return took if money is None else f"{money:,.2f} ({took})"

    def compute_night_cost(self, usage: dict[str, float]) -> float:
        """Compute the cost of one kind in one night: money if there are prices, else hours."""
        if not self.prices.per_hour:
            return sum(usage.values()) / SECONDS_PER_HOUR
        return sum(self.prices.compute_cost(name, s) or 0.0 for name, s in usage.items())

    @property
    def cost_rows(self) -> list[tuple[str, ...]]:
        """The cost by kind and resource, of all nights and of the newest night."""
        nights = self.history.nights
        usages = {
            (kind, resource)
            for night in nights
            for kind, usage in night.spent.items()
            for resource in usage
        }
        rows = []
        for kind, resource in sorted(usages):
            seconds = [night.spent.get(kind, {}).get(resource, 0.0) for night in nights]
            costs = (
                self.describe_usage(resource, used_seconds)
                for used_seconds in (sum(seconds), seconds[-1])
            )
            rows.append((f"{kind}, {resource}", *costs))
        return rows


def sum_usage(line: Timeline) -> tuple[str, float] | None:
    """Return an item's resource in the window, and its seconds; None if not measured."""
    device = sum(point.device_seconds for point in line.points)
    if device:
        return line.item.device or "gpu", device
    seconds = sum(point.seconds for point in line.points)
    return ("cpu", seconds) if seconds else None


def make_night_marks(line: Timeline, nights: int) -> list[ReportMark | None]:
    """Make a mark for each night; None if the night did not run the item."""
    marks: list[ReportMark | None] = [None] * nights
    for point in line.points:
        marks[point.night_index] = SILENT_MARK
    for point, word in list_night_states(line.points):
        marks[point.night_index] = STATE_MARKS[word]
    return marks


def describe_last_failure(line: Timeline) -> str:
    failures = (Verdict.FAILS, Verdict.FLAKY, Verdict.HAS_BUG)
    points = (point for point in reversed(line.points) if point.outcome in failures)
    return to_single_line(next((point.main_observation.message for point in points), ""), 200)


def describe_since(line: Timeline, history_view: HistoryView) -> str:
    """Return 'since 2026-11-20, 3 times; passed on 2026-11-19', or the night of the repair."""
    if line.since_night is None:
        return ""
    days = history_view.days
    if line.state is TimelineState.MENDED:
        return f"passes since {days[line.since_night]}"
    failed = [point for point in line.informative_points if point.night_index >= line.since_night]
    text = f"since {days[line.since_night]}"
    text += f", {len(failed)} times" if len(failed) > 1 else ""
    if line.last_ok is None:
        return f"{text}; never passed in this window"
    return f"{text}; passed on {days[line.last_ok.night_index]}"


def describe_version_changes(before: RunVersions, after: RunVersions) -> list[str]:
    """Describe each version that differs between two runs: 'torch 2.12.0 → 2.13.0'."""
    changes = []
    for name, old, new in (
        ("SGLang", before.release, after.release),
        ("unfix", before.unfix, after.unfix),
    ):
        if old != new:
            changes.append(f"{name} {old or 'unknown'} → {new or 'unknown'}")
    old_packages, new_packages = dict(before.packages), dict(after.packages)
    for name in sorted({*old_packages, *new_packages}):
        old, new = old_packages.get(name, "absent"), new_packages.get(name, "absent")
        changes += [f"{name} {old} → {new}"] if old != new else []
    return changes


def describe_versions(run_versions: RunVersions) -> str:
    versions = [
        f"SGLang {run_versions.release}" if run_versions.release else "",
        f"unfix {run_versions.unfix}" if run_versions.unfix else "",
        *(f"{name} {version}" for name, version in run_versions.packages),
    ]
    return ", ".join(text for text in versions if text) or "not recorded"


def describe_flakiness(line: Timeline) -> str:
    """Return '2 of 5 repeats with the same versions had another outcome (score 13%)'."""
    score = line.score
    if not score.compared:
        return "never run twice with the same versions"
    repeats = format_count(score.compared, "repeat")
    text = f"{score.differing} of {repeats} with the same versions had another outcome"
    return f"{text} (score {score.share:.0%})" if score.differing else text
