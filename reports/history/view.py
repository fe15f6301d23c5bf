"""A history as every report shows it: what fails now and since when, what it costs, what wavers."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from harness.runs.history.resource_prices import SECONDS_PER_HOUR, ResourcePrices
from harness.runs.history.timelines import list_night_states
from harness.runs.history.values import (
    NightHistory,
    ObservationOutcome,
    RunVersions,
    Timeline,
    TimelineState,
)
from reports.shared import formatting
from reports.shared.formatting import ReportMark
from reports.shared.formatting import to_single_line as short

STATE_MARKS: dict[TimelineState, ReportMark] = {
    TimelineState(mark.word): mark
    for mark in (
        ReportMark("new", "NEW", "✕", "broken", "Failed in the newest night, and never before."),
        ReportMark("back", "BCK", "↺", "death", "Failed again; it had failed and was well since."),
        ReportMark("known", "KNW", "●", "toothless", "Failed, as it did the time before."),
        ReportMark("flaky", "FLK", "≈", "unreached", "Failed, and passed when it was run again."),
        ReportMark(
            "not run", "NRN", "?", "missing", "Failed when last run; the newest night is silent."
        ),
        ReportMark(
            "mended", "MND", "✓", "fix", "Failed in this window, and is ok in the newest night."
        ),
        ReportMark("ok", "ok", "·", "good", "Nothing was wrong."),
        ReportMark("idle", "idl", " ", "quiet", "Was ok; the newest night says nothing of it."),
    )
}
SILENT_MARK = ReportMark("silent", "sil", "-", "quiet", "It was looked at, and that says nothing.")
MAX_ROWS = 40  # of the grid, and of a table
MAX_COSTLY_ROWS = 12
FAILING_STATES = (TimelineState.NEW, TimelineState.BACK, TimelineState.KNOWN, TimelineState.NOT_RUN)


@dataclass(frozen=True)
class HistoryView:
    history: NightHistory
    prices: ResourcePrices

    @property
    def days(self) -> list[str]:
        return [format_day(night.day) for night in self.history.nights]

    @property
    def counts(self) -> list[tuple[ReportMark, int]]:
        counts = self.history.counts
        order = (
            *FAILING_STATES,
            TimelineState.FLAKY,
            TimelineState.MENDED,
            TimelineState.OK,
            TimelineState.IDLE,
        )
        return [(STATE_MARKS[state], counts[state]) for state in order if counts[state]]

    @property
    def failing(self) -> list[Timeline]:
        return self.history.select_by_state(*FAILING_STATES)

    @property
    def failed_lines(self) -> list[Timeline]:
        """What failed at all, what matters most first."""
        return [line for line in self.history.timelines if line.first_failed is not None]

    @property
    def flaky(self) -> list[Timeline]:
        found = [line for line in self.history.timelines if line.is_flaky]
        return sorted(found, key=lambda line: -line.score.share)

    @property
    def costliest(self) -> list[Timeline]:
        return sorted(
            (line for line in self.history.timelines if sum_usage(line)),
            key=lambda line: -self.compute_cost(line),
        )[:MAX_COSTLY_ROWS]

    @property
    def slower(self) -> list[Timeline]:
        found = [line for line in self.history.timelines if line.slowdown]
        return sorted(found, key=lambda line: -(line.slowdown or 0))

    @property
    def slower_or_costliest(self) -> list[Timeline]:
        """What became slower, then what costs most."""
        slower = self.slower[:MAX_COSTLY_ROWS]
        return slower + [line for line in self.costliest if line not in slower]

    @property
    def statement(self) -> str:
        counts = self.history.counts
        fresh = counts[TimelineState.NEW] + counts[TimelineState.BACK]
        known = counts[TimelineState.KNOWN]
        night = format_day(self.history.nights[-1].day)
        if fresh:
            also = f", and {format_count(known, 'known failure')} beside" if known else ""
            return f"{format_count(fresh, 'new failure')} in the night of {night}{also}."
        if known:
            return f"Nothing new in the night of {night}; {format_count(known, 'known failure')}."
        if counts[TimelineState.NOT_RUN]:
            open_ = format_count(counts[TimelineState.NOT_RUN], "earlier failure")
            return f"Nothing failed in the night of {night}, and {open_} was not looked at."
        return f"Nothing failed in the night of {night}."

    @property
    def problems(self) -> list[str]:
        """What a reader has to know of the window itself."""
        said = list(self.history.notes)
        for night in self.history.nights:
            if night.stopped:
                names = ", ".join(short(name, 60) for name in night.stopped[:4])
                more = f" and {len(night.stopped) - 4} more" if len(night.stopped) > 4 else ""
                said.append(f"{format_day(night.day)}: not run to the end: {names}{more}")
        if unpriced := self.unpriced:
            said.append(f"no --price for {', '.join(unpriced)}: shown in hours, and in no sum")
        return said

    # Costs

    @property
    def unpriced(self) -> list[str]:
        if not self.prices.per_hour:
            return []
        used = {
            what
            for night in self.history.nights
            for spent in night.spent.values()
            for what in spent
        }
        return sorted(what for what in used if self.prices.find_price(what) is None)

    def compute_cost(self, line: Timeline) -> float:
        """To sort by: money where there are prices, else seconds."""
        what, seconds = sum_usage(line) or ("cpu", 0.0)
        return (self.prices.compute_cost(what, seconds) or 0.0) if self.prices.per_hour else seconds

    def describe_cost(self, line: Timeline) -> str:
        what, seconds = sum_usage(line) or ("cpu", 0.0)
        return self.describe_usage(what, seconds)

    def describe_usage(self, resource: str, seconds: float) -> str:
        money = self.prices.compute_cost(resource, seconds)
        took = (
            format_hours(seconds)
            if resource == "cpu"
            else f"{format_hours(seconds)} {short(resource, 30)}"
        )
        return took if money is None else f"{money:,.2f} ({took})"

    def compute_night_cost(self, spent: dict[str, float]) -> float:
        """Of one kind in one night: money where there are prices, else hours."""
        if not self.prices.per_hour:
            return sum(spent.values()) / SECONDS_PER_HOUR
        return sum(
            self.prices.compute_cost(what, seconds) or 0.0 for what, seconds in spent.items()
        )

    @property
    def cost_rows(self) -> list[tuple[str, str, str]]:
        """By kind and by what was used: in all, and in the newest night."""
        found: dict[tuple[str, str], list[float]] = {}
        last = len(self.history.nights) - 1
        for place, night in enumerate(self.history.nights):
            for kind, spent in night.spent.items():
                for what, seconds in spent.items():
                    both = found.setdefault((kind, what), [0.0, 0.0])
                    both[0] += seconds
                    both[1] += seconds if place == last else 0.0
        return [
            (
                f"{kind}, {what}",
                self.describe_usage(what, both[0]),
                self.describe_usage(what, both[1]),
            )
            for (kind, what), both in sorted(found.items())
        ]


def sum_usage(line: Timeline) -> tuple[str, float] | None:
    """What a thing used in the window, and how long; None if nobody measured."""
    device = sum(point.device_seconds for point in line.points)
    if device:
        return line.item.device or "gpu", device
    seconds = sum(point.seconds for point in line.points)
    return ("cpu", seconds) if seconds else None


def make_night_marks(line: Timeline, nights: int) -> list[ReportMark | None]:
    """A mark a night; None where it was not run."""
    found: list[ReportMark | None] = [None] * nights
    for point in line.points:
        found[point.night_index] = SILENT_MARK
    for point, word in list_night_states(line.points):
        found[point.night_index] = STATE_MARKS[word]
    return found


def describe_last_failure(line: Timeline) -> str:
    """What the last failing said."""
    bad = (ObservationOutcome.FAILED, ObservationOutcome.FLAKY)
    told = next(
        (one.main_observation.message for one in reversed(line.points) if one.outcome in bad), ""
    )
    return short(told, 200)


def describe_since(line: Timeline, history_view: HistoryView) -> str:
    """'since 2026-11-20, 3 times; ok on 2026-11-19', or since when it is mended."""
    if line.since_night is None:
        return ""
    days = history_view.days
    if line.state is TimelineState.MENDED:
        return f"well since {days[line.since_night]}"
    failed = [one for one in line.informative_points if one.night_index >= line.since_night]
    told = f"since {days[line.since_night]}"
    if len(failed) > 1:
        told += f", {len(failed)} times"
    if line.last_ok is None:
        return f"{told}; not seen ok in this window"
    return f"{told}; ok on {days[line.last_ok.night_index]}"


def describe_version_changes(before: RunVersions, after: RunVersions) -> list[str]:
    """What is not the same of two runs' versions, in words."""
    said = []
    for name, one, other in (
        ("SGLang", before.release, after.release),
        ("unfix", before.unfix, after.unfix),
    ):
        if one != other:
            said.append(f"{name} {one or 'of no known version'} → {other or 'unknown'}")
    old, new = dict(before.packages), dict(after.packages)
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            said.append(f"{name} {old.get(name, 'absent')} → {new.get(name, 'absent')}")
    return said


def describe_versions(run_versions: RunVersions) -> str:
    told = [
        f"SGLang {run_versions.release}" if run_versions.release else "",
        f"unfix {run_versions.unfix}" if run_versions.unfix else "",
    ]
    told += [f"{name} {version}" for name, version in run_versions.packages]
    return ", ".join(word for word in told if word) or "not recorded"


def describe_flakiness(line: Timeline) -> str:
    """How flaky it is, said plainly."""
    score = line.score
    if not score.compared:
        return "never run twice with the same versions"
    told = f"{score.differing} of {format_count(score.compared, 'repeat')} with the same versions came out otherwise"
    return f"{told} (score {score.share:.0%})" if score.differing else told


def format_hours(seconds: float) -> str:
    return formatting.format_duration(seconds)


def format_day(day: datetime.date) -> str:
    return day.isoformat()


def format_count(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")
