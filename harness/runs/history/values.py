"""A history as values: what was seen, of what, in which night, and what that makes of it now."""

from __future__ import annotations

import datetime
from enum import StrEnum

import msgspec


class ObservationOutcome(StrEnum):
    """What one observation says."""

    OK = "ok"
    FAILED = "failed"
    FLAKY = "flaky"  # it failed, and passed when it was run again
    SILENT = "silent"  # it was looked at, and that says nothing


class TimelineState(StrEnum):
    """What something is as of the newest night."""

    NEW = "new"  # failed, and never before in the window
    BACK = "back"  # failed, was mended before, and had failed before that
    KNOWN = "known"  # failed, as it did the time before
    FLAKY = "flaky"  # failed and passed in the newest night
    NOT_RUN = "not run"  # failed when it was last run, and says nothing in the newest night
    MENDED = "mended"  # ok, and failed the time before
    OK = "ok"
    IDLE = "idle"  # was ok, and says nothing in the newest night

    @property
    def is_failing(self) -> bool:
        return self in (TimelineState.NEW, TimelineState.BACK, TimelineState.KNOWN)

    @property
    def is_new_failure(self) -> bool:
        """Whether somebody has to be told of it now."""
        return self in (TimelineState.NEW, TimelineState.BACK)


class RunVersions(msgspec.Struct, frozen=True):
    """What something ran with."""

    release: str = ""
    unfix: str = ""
    packages: tuple[tuple[str, str], ...] = ()


class TrackedItem(msgspec.Struct, frozen=True):
    """What is looked at night after night: its key is the same in each of them."""

    kind: str  # prove, lifecycle, eval, matrix, fuzz, mutate
    key: str
    title: str
    release: str = ""
    device: str = ""
    details: tuple[tuple[str, str], ...] = ()  # more of where it is, by name


class Observation(msgspec.Struct, gc=False):
    """One observation of a thing."""

    timestamp: float  # seconds since the epoch
    run_id: str
    outcome: ObservationOutcome
    versions: RunVersions
    message: str = ""
    seconds: float = 0.0
    device_seconds: float = 0.0


class NightResult(msgspec.Struct, gc=False):
    """A thing in one night: its observations there joined."""

    night_index: int  # its place among the nights
    outcome: ObservationOutcome
    main_observation: Observation  # the one that says most of it
    seconds: float = 0.0  # of all of them
    device_seconds: float = 0.0


class FlakeScore(msgspec.Struct, frozen=True):
    """How often two outcomes of the same thing with the same versions differ."""

    differing: int
    compared: int

    @property
    def share(self) -> float:
        """Drawn towards nought as long as little is known: as if ten more pairs had been alike."""
        return self.differing / (self.compared + 10)


class Timeline(msgspec.Struct):
    """A thing over the nights."""

    item: TrackedItem
    points: list[NightResult]
    state: TimelineState
    score: FlakeScore
    first_failed: int | None = None  # nights, by their places
    last_failed: int | None = None
    since_night: int | None = None  # the first night of the failing that lasts
    last_ok: NightResult | None = None  # the last one before that which was ok
    median_seconds: float = 0.0  # seconds, over its nights
    slowdown: float | None = None  # how many times its own median the newest one took

    @property
    def is_flaky(self) -> bool:
        """One difference with the same versions is a change; two of them, or a retry, are not."""
        return self.score.differing > 1 or any(
            one.outcome is ObservationOutcome.FLAKY for one in self.points
        )

    @property
    def informative_points(self) -> list[NightResult]:
        return [point for point in self.points if point.outcome is not ObservationOutcome.SILENT]


class Night(msgspec.Struct):
    """From noon to noon, UTC; named by the day on which it begins."""

    day: datetime.date
    runs: list[str] = []
    stopped: list[str] = []  # those that did not come to their end
    counts: dict[str, dict[str, int]] = {}  # by kind, by the state of that night
    spent: dict[str, dict[str, float]] = {}  # by kind, by resource, in seconds


class NightHistory(msgspec.Struct):
    """All of it, in a window of time."""

    since: datetime.datetime
    nights: list[Night]
    timelines: list[Timeline]  # what matters most first
    notes: list[str] = []

    @property
    def kinds(self) -> list[str]:
        return [kind for kind in KINDS if any(kind in night.counts for night in self.nights)]

    @property
    def counts(self) -> dict[TimelineState, int]:
        found = dict.fromkeys(TimelineState, 0)
        for line in self.timelines:
            found[line.state] += 1
        return found

    @property
    def green(self) -> bool:
        return not any(line.state.is_failing for line in self.timelines)

    def select_by_state(self, *states: TimelineState) -> list[Timeline]:
        return [line for line in self.timelines if line.state in states]


KINDS = ("prove", "lifecycle", "matrix", "eval", "fuzz", "mutate")
