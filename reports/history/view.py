"""A history as every report shows it: what fails now and since when, what it costs, what wavers."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from harness.history.costs import HOUR, Prices
from harness.history.lines import turns
from harness.history.values import History, Line, Outcome, State, Versions
from reports.shared import texts
from reports.shared.texts import Mark
from reports.shared.texts import line as short

MARKS: dict[State, Mark] = {
    State(mark.word): mark
    for mark in (
        Mark("new", "NEW", "✕", "broken", "Failed in the newest night, and never before."),
        Mark("back", "BCK", "↺", "death", "Failed again; it had failed and was well since."),
        Mark("known", "KNW", "●", "toothless", "Failed, as it did the time before."),
        Mark("flaky", "FLK", "≈", "unreached", "Failed, and passed when it was run again."),
        Mark("not run", "NRN", "?", "missing", "Failed when last run; the newest night is silent."),
        Mark("mended", "MND", "✓", "fix", "Failed in this window, and is ok in the newest night."),
        Mark("ok", "ok", "·", "good", "Nothing was wrong."),
        Mark("idle", "idl", " ", "quiet", "Was ok; the newest night says nothing of it."),
    )
}
SILENT = Mark("silent", "sil", "-", "quiet", "It was looked at, and that says nothing.")
ROWS = 40  # of the grid, and of a table
DEAR = 12
FIXED = (State.NEW, State.BACK, State.KNOWN, State.NOT_RUN)


@dataclass(frozen=True)
class HistoryView:
    history: History
    prices: Prices

    @property
    def days(self) -> list[str]:
        return [day_of(night.day) for night in self.history.nights]

    @property
    def counts(self) -> list[tuple[Mark, int]]:
        counts = self.history.counts
        order = (*FIXED, State.FLAKY, State.MENDED, State.OK, State.IDLE)
        return [(MARKS[state], counts[state]) for state in order if counts[state]]

    @property
    def failing(self) -> list[Line]:
        return self.history.of(*FIXED)

    @property
    def grid(self) -> list[Line]:
        """What failed at all, what matters most first."""
        return [line for line in self.history.lines if line.first_failed is not None]

    @property
    def flaky(self) -> list[Line]:
        found = [line for line in self.history.lines if line.flaky]
        return sorted(found, key=lambda line: -line.score.share)

    @property
    def dearest(self) -> list[Line]:
        return sorted(
            (line for line in self.history.lines if spent(line)),
            key=lambda line: -self.cost_of(line),
        )[:DEAR]

    @property
    def slower(self) -> list[Line]:
        found = [line for line in self.history.lines if line.slower]
        return sorted(found, key=lambda line: -(line.slower or 0))

    @property
    def dear(self) -> list[Line]:
        """What became slower, then what costs most."""
        slower = self.slower[:DEAR]
        return slower + [line for line in self.dearest if line not in slower]

    @property
    def statement(self) -> str:
        counts = self.history.counts
        fresh = counts[State.NEW] + counts[State.BACK]
        known = counts[State.KNOWN]
        night = day_of(self.history.nights[-1].day)
        if fresh:
            also = f", and {many(known, 'known failure')} beside" if known else ""
            return f"{many(fresh, 'new failure')} in the night of {night}{also}."
        if known:
            return f"Nothing new in the night of {night}; {many(known, 'known failure')}."
        if counts[State.NOT_RUN]:
            open_ = many(counts[State.NOT_RUN], "earlier failure")
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
                said.append(f"{day_of(night.day)}: not run to the end: {names}{more}")
        if unpriced := self.unpriced:
            said.append(f"no --price for {', '.join(unpriced)}: shown in hours, and in no sum")
        return said

    # Costs

    @property
    def unpriced(self) -> list[str]:
        if not self.prices.an_hour:
            return []
        used = {
            what
            for night in self.history.nights
            for spent in night.spent.values()
            for what in spent
        }
        return sorted(what for what in used if self.prices.price(what) is None)

    def cost_of(self, line: Line) -> float:
        """To sort by: money where there are prices, else seconds."""
        what, seconds = spent(line) or ("cpu", 0.0)
        return (self.prices.of(what, seconds) or 0.0) if self.prices.an_hour else seconds

    def told_cost(self, line: Line) -> str:
        what, seconds = spent(line) or ("cpu", 0.0)
        return self.worth(what, seconds)

    def worth(self, what: str, seconds: float) -> str:
        money = self.prices.of(what, seconds)
        took = hours(seconds) if what == "cpu" else f"{hours(seconds)} {short(what, 30)}"
        return took if money is None else f"{money:,.2f} ({took})"

    def night_cost(self, spent: dict[str, float]) -> float:
        """Of one kind in one night: money where there are prices, else hours."""
        if not self.prices.an_hour:
            return sum(spent.values()) / HOUR
        return sum(self.prices.of(what, seconds) or 0.0 for what, seconds in spent.items())

    @property
    def spent(self) -> list[tuple[str, str, str]]:
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
            (f"{kind}, {what}", self.worth(what, both[0]), self.worth(what, both[1]))
            for (kind, what), both in sorted(found.items())
        ]


def spent(line: Line) -> tuple[str, float] | None:
    """What a thing used in the window, and how long; None if nobody measured."""
    device = sum(point.device_spent for point in line.points)
    if device:
        return line.thing.device or "gpu", device
    seconds = sum(point.spent for point in line.points)
    return ("cpu", seconds) if seconds else None


def squares(line: Line, nights: int) -> list[Mark | None]:
    """A mark a night; None where it was not run."""
    found: list[Mark | None] = [None] * nights
    for point in line.points:
        found[point.night] = SILENT
    for point, word in turns(line.points):
        found[point.night] = MARKS[word]
    return found


def words(line: Line) -> str:
    """What the last failing said."""
    bad = (Outcome.FAILED, Outcome.FLAKY)
    told = next((one.last.words for one in reversed(line.points) if one.outcome in bad), "")
    return short(told, 200)


def since(line: Line, view: HistoryView) -> str:
    """'since 2026-11-20, 3 times; ok on 2026-11-19', or since when it is mended."""
    if line.since is None:
        return ""
    days = view.days
    if line.state is State.MENDED:
        return f"well since {days[line.since]}"
    failed = [one for one in line.telling if one.night >= line.since]
    told = f"since {days[line.since]}"
    if len(failed) > 1:
        told += f", {len(failed)} times"
    if line.good is None:
        return f"{told}; not seen ok in this window"
    return f"{told}; ok on {days[line.good.night]}"


def changed(before: Versions, after: Versions) -> list[str]:
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


def versions(of: Versions) -> str:
    told = [f"SGLang {of.release}" if of.release else "", f"unfix {of.unfix}" if of.unfix else ""]
    told += [f"{name} {version}" for name, version in of.packages]
    return ", ".join(word for word in told if word) or "not recorded"


def wavers(line: Line) -> str:
    """How flaky it is, said plainly."""
    score = line.score
    if not score.of:
        return "never run twice with the same versions"
    told = f"{score.differ} of {many(score.of, 'repeat')} with the same versions came out otherwise"
    return f"{told} (score {score.share:.0%})" if score.differ else told


def hours(seconds: float) -> str:
    return texts.duration(seconds)


def day_of(day: datetime.date) -> str:
    return day.isoformat()


def many(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")
