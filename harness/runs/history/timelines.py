"""Timelines from observations: the result of each night, states, flake scores, durations."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Sequence

from harness.core.outcomes import Verdict
from harness.runs.history import observation_reader, time_window
from harness.runs.history.values import (
    FlakeScore,
    Night,
    NightHistory,
    NightResult,
    Observation,
    Timeline,
    TimelineState,
    TrackedItem,
)
from harness.store.database import Store

SLOWER_FACTOR = 1.5  # an item is slower from this multiple of its median on
MIN_NIGHTS_FOR_SLOWER = 4  # the fewest nights for a slower item
MIN_SLOWDOWN_SECONDS = 1.0  # a smaller difference is no slowdown


def read_history(store: Store, since: datetime.datetime, now: datetime.datetime) -> NightHistory:
    """Read the history of the nights since a moment."""
    read = observation_reader.ObservationReader(store, since, now)
    days = sorted({run.night for run in read.runs})
    places = {day: place for place, day in enumerate(days)}
    nights = [Night(day) for day in days]
    for run in read.runs:
        night = nights[places[run.night]]
        night.runs.append(run.id)
        if not run.completed:
            night.stopped.append(run.id)
    lines = []
    for key, observations in read.observations.items():
        observations.sort(key=lambda one: one[1].timestamp)
        line = _make_timeline(
            read.items[key], [(places[day], one) for day, one in observations], len(nights) - 1
        )
        _count_nights(line, nights)
        lines.append(line)
    order = {state: place for place, state in enumerate(TimelineState)}
    lines.sort(key=lambda line: (order[line.state], line.item.kind, line.item.key))
    return NightHistory(
        time_window.find_night_start(time_window.night_from_moment(since)),
        nights,
        lines,
        read.notes,
    )


def _make_timeline(
    item: TrackedItem, observations: Sequence[tuple[int, Observation]], newest_night: int
) -> Timeline:
    by_night: dict[int, list[Observation]] = {}
    for place, one in observations:
        by_night.setdefault(place, []).append(one)
    points = [join_observations(place, joined) for place, joined in by_night.items()]
    points.sort(key=lambda one: one.night_index)
    line = Timeline(
        item,
        points,
        determine_state(points, newest_night),
        compute_flake_score([one for _, one in observations]),
    )
    failed = [one.night_index for one in points if one.outcome in (Verdict.FAILS, Verdict.FLAKY)]
    if failed:
        line.first_failed, line.last_failed = failed[0], failed[-1]
        _set_since(line)
    _set_times(line, newest_night)
    return line


def join_observations(night: int, observations: Sequence[Observation]) -> NightResult:
    """Join the observations of one night, the oldest first."""
    if len(observations) == 1:
        one = observations[0]
        return NightResult(night, one.outcome, one, one.seconds, one.device_seconds)
    telling = [one for one in observations if one.outcome is not Verdict.CANNOT_TELL]
    last = telling[-1] if telling else observations[-1]
    outcome = last.outcome
    failed = [
        one for one in telling if one.outcome is Verdict.FAILS and one.versions == last.versions
    ]
    if outcome in (Verdict.PASSES, Verdict.HAS_BUG) and failed:
        outcome, last = Verdict.FLAKY, failed[-1]
    return NightResult(
        *(night, outcome, last),
        sum(one.seconds for one in observations),
        sum(one.device_seconds for one in observations),
    )


def determine_state(points: Sequence[NightResult], newest_night: int) -> TimelineState:
    """Return the state of an item as of the newest night."""
    known = list_night_states(points)
    if not known:
        return TimelineState.IDLE
    last, word = known[-1]
    if last.night_index != newest_night:
        return TimelineState.NOT_RUN if last.outcome is Verdict.FAILS else TimelineState.IDLE
    failed = any(one.outcome is Verdict.FAILS for one, _ in known)
    return TimelineState.MENDED if word is TimelineState.OK and failed else word


def list_night_states(points: Sequence[NightResult]) -> list[tuple[NightResult, TimelineState]]:
    """Return the state of an item in each night with a conclusive outcome."""
    states: list[tuple[NightResult, TimelineState]] = []
    before, ever = Verdict.CANNOT_TELL, False
    for one in points:
        if one.outcome is Verdict.CANNOT_TELL:
            continue
        if one.outcome is Verdict.FAILS:
            known = before is Verdict.FAILS
            word = (
                TimelineState.KNOWN if known else TimelineState.BACK if ever else TimelineState.NEW
            )
        elif one.outcome is Verdict.FLAKY:
            word = TimelineState.FLAKY
        elif one.outcome is Verdict.HAS_BUG:
            word = TimelineState.KNOWN_BUG
        else:
            word = TimelineState.MENDED if before is Verdict.FAILS else TimelineState.OK
        states.append((one, word))
        fine = (Verdict.PASSES, Verdict.HAS_BUG)
        before, ever = one.outcome, ever or one.outcome not in fine
    return states


def _set_since(timeline: Timeline) -> None:
    """Set the first night of the present failure or repair, and the last ok night before it."""
    telling = timeline.informative_points
    if timeline.state.is_failing or timeline.state in (TimelineState.NOT_RUN, TimelineState.MENDED):
        bad = timeline.state is not TimelineState.MENDED
        while telling and (telling[-1].outcome is Verdict.FAILS) is bad:
            timeline.since_night = telling.pop().night_index
        if bad:
            timeline.last_ok = next(
                (one for one in reversed(telling) if one.outcome is Verdict.PASSES), None
            )


def compute_flake_score(observations: Sequence[Observation]) -> FlakeScore:
    """Count the neighbouring outcomes with the same versions, and those that differ."""
    telling = [one for one in observations if one.outcome is not Verdict.CANNOT_TELL]
    differ = of = 0
    for place, one in enumerate(telling):
        if one.outcome is Verdict.FLAKY:  # a retry differed
            differ, of = differ + 1, of + 1
        if place and telling[place - 1].versions == one.versions:
            alike = (telling[place - 1].outcome is Verdict.FAILS) == (one.outcome is Verdict.FAILS)
            differ, of = differ + (not alike), of + 1
    return FlakeScore(differ, of)


def _set_times(timeline: Timeline, newest_night: int) -> None:
    took = [
        one.main_observation.seconds
        for one in timeline.informative_points
        if one.main_observation.seconds > 0
    ]
    if not took:
        return
    timeline.median_seconds = statistics.median(took)
    last = timeline.informative_points[-1]
    if len(took) >= MIN_NIGHTS_FOR_SLOWER and last.night_index == newest_night:
        usual = statistics.median(took[:-1])
        if usual > 0 and last.main_observation.seconds > max(
            SLOWER_FACTOR * usual, usual + MIN_SLOWDOWN_SECONDS
        ):
            timeline.slowdown = last.main_observation.seconds / usual


def _count_nights(timeline: Timeline, nights: list[Night]) -> None:
    """Add a timeline's states and costs to its nights."""
    kind, points = timeline.item.kind, timeline.points
    for one, word in list_night_states(points):
        counts = nights[one.night_index].counts.setdefault(kind, {})
        counts[word] = counts.get(word, 0) + 1
    for one in points:
        spent = nights[one.night_index].spent.setdefault(kind, {})
        what = (timeline.item.device or "gpu") if one.device_seconds else "cpu"
        seconds = one.device_seconds or one.seconds
        if seconds:
            spent[what] = spent.get(what, 0.0) + seconds
