"""From observations to lines: nights joined, states told, flaky scores, times."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Sequence

from harness.history import reading, window
from harness.history.values import (
    History,
    Line,
    Night,
    Outcome,
    Point,
    Score,
    Seen,
    State,
    Thing,
)
from harness.store.database import Store

SLOWER = 1.5  # times its own median
ENOUGH = 4  # nights, before anything is called slower
LEAST = 1.0  # seconds by which it is


def history(store: Store, since: datetime.datetime, now: datetime.datetime) -> History:
    """What the store holds of the nights since then."""
    read = reading.Reading(store, since, now)
    days = sorted({run.night for run in read.runs})
    places = {day: place for place, day in enumerate(days)}
    nights = [Night(day) for day in days]
    for run in read.runs:
        night = nights[places[run.night]]
        night.runs.append(run.id)
        if not run.ended:
            night.stopped.append(run.id)
    lines = []
    for key, seen in read.seen.items():
        seen.sort(key=lambda one: one[1].at)
        line = _line(read.things[key], [(places[day], one) for day, one in seen], len(nights) - 1)
        _count(line, nights)
        lines.append(line)
    order = {state: place for place, state in enumerate(State)}
    lines.sort(key=lambda line: (order[line.state], line.thing.kind, line.thing.key))
    return History(window.begins(window.night_of(since)), nights, lines, read.notes)


def _line(thing: Thing, seen: Sequence[tuple[int, Seen]], newest: int) -> Line:
    by_night: dict[int, list[Seen]] = {}
    for place, one in seen:
        by_night.setdefault(place, []).append(one)
    points = [point(place, those) for place, those in by_night.items()]
    points.sort(key=lambda one: one.night)
    line = Line(thing, points, state(points, newest), score([one for _, one in seen]))
    failed = [one.night for one in points if one.outcome in (Outcome.FAILED, Outcome.FLAKY)]
    if failed:
        line.first_failed, line.last_failed = failed[0], failed[-1]
        _since(line)
    _times(line, newest)
    return line


def point(night: int, seen: Sequence[Seen]) -> Point:
    """The observations of one night, the oldest first, as one."""
    if len(seen) == 1:
        one = seen[0]
        return Point(night, one.outcome, one, one.seconds, one.device_seconds)
    telling = [one for one in seen if one.outcome is not Outcome.SILENT]
    last = telling[-1] if telling else seen[-1]
    outcome = last.outcome
    failed = [
        one for one in telling if one.outcome is Outcome.FAILED and one.versions == last.versions
    ]
    if outcome is Outcome.OK and failed:
        outcome, last = Outcome.FLAKY, failed[-1]
    return Point(
        *(night, outcome, last),
        sum(one.seconds for one in seen),
        sum(one.device_seconds for one in seen),
    )


def state(points: Sequence[Point], newest: int) -> State:
    """What a thing is as of the newest night."""
    known = turns(points)
    if not known:
        return State.IDLE
    last, word = known[-1]
    if last.night != newest:
        return State.NOT_RUN if last.outcome is Outcome.FAILED else State.IDLE
    failed = any(one.outcome is Outcome.FAILED for one, _ in known)
    return State.MENDED if word is State.OK and failed else word


def turns(points: Sequence[Point]) -> list[tuple[Point, State]]:
    """What a thing was in each night that says anything of it."""
    found: list[tuple[Point, State]] = []
    before, ever = Outcome.SILENT, False
    for one in points:
        if one.outcome is Outcome.SILENT:
            continue
        if one.outcome is Outcome.FAILED:
            known = before is Outcome.FAILED
            word = State.KNOWN if known else State.BACK if ever else State.NEW
        elif one.outcome is Outcome.FLAKY:
            word = State.FLAKY
        else:
            word = State.MENDED if before is Outcome.FAILED else State.OK
        found.append((one, word))
        before, ever = one.outcome, ever or one.outcome is not Outcome.OK
    return found


def _since(line: Line) -> None:
    """The first night of what lasts, be it failing or being mended; the last ok before it."""
    telling = line.telling
    if line.state.fails or line.state in (State.NOT_RUN, State.MENDED):
        bad = line.state is not State.MENDED
        while telling and (telling[-1].outcome is Outcome.FAILED) is bad:
            line.since = telling.pop().night
        if bad:
            line.good = next((one for one in reversed(telling) if one.outcome is Outcome.OK), None)


def score(seen: Sequence[Seen]) -> Score:
    """Of neighbouring outcomes with the same versions: how many differ."""
    telling = [one for one in seen if one.outcome is not Outcome.SILENT]
    differ = of = 0
    for place, one in enumerate(telling):
        if one.outcome is Outcome.FLAKY:  # its own retry differed
            differ, of = differ + 1, of + 1
        if place and telling[place - 1].versions == one.versions:
            alike = (telling[place - 1].outcome is Outcome.FAILED) == (
                one.outcome is Outcome.FAILED
            )
            differ, of = differ + (not alike), of + 1
    return Score(differ, of)


def _times(line: Line, newest: int) -> None:
    took = [one.last.seconds for one in line.telling if one.last.seconds > 0]
    if not took:
        return
    line.median = statistics.median(took)
    last = line.telling[-1]
    if len(took) >= ENOUGH and last.night == newest:
        usual = statistics.median(took[:-1])
        if usual > 0 and last.last.seconds > max(SLOWER * usual, usual + LEAST):
            line.slower = last.last.seconds / usual


def _count(line: Line, nights: list[Night]) -> None:
    """What it was in each night, and what it cost there."""
    kind, points = line.thing.kind, line.points
    for one, word in turns(points):
        counts = nights[one.night].counts.setdefault(kind, {})
        counts[word] = counts.get(word, 0) + 1
    for one in points:
        spent = nights[one.night].spent.setdefault(kind, {})
        what = (line.thing.device or "gpu") if one.device_spent else "cpu"
        seconds = one.device_spent or one.spent
        if seconds:
            spent[what] = spent.get(what, 0.0) + seconds
