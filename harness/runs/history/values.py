"""A history as values: tracked items, their observations by night, and their present states."""

from __future__ import annotations

import datetime
from enum import StrEnum

import msgspec

from harness.core.outcomes import Verdict


class TimelineState(StrEnum):
    """The state of an item as of the newest night."""

    NEW = "new"  # failed, for the first time in the window
    BACK = "back"  # failed, was mended before, and had failed before that
    KNOWN = "known"  # failed, as in the night before
    FLAKY = "flaky"  # failed and passed in the newest night
    KNOWN_BUG = "known bug"  # failed by a bug that the release has, and passes with its fix
    NOT_RUN = "not run"  # failed in its last run, and has no outcome in the newest night
    MENDED = "mended"  # ok, and failed in the night before
    OK = "ok"
    IDLE = "idle"  # was ok, and has no outcome in the newest night

    @property
    def is_failing(self) -> bool:
        return self in (TimelineState.NEW, TimelineState.BACK, TimelineState.KNOWN)

    @property
    def is_new_failure(self) -> bool:
        """Whether the failure gets an issue."""
        return self in (TimelineState.NEW, TimelineState.BACK)


class RunVersions(msgspec.Struct, frozen=True):
    """The versions of a run."""

    release: str = ""
    unfix: str = ""
    packages: tuple[tuple[str, str], ...] = ()


class TrackedItem(msgspec.Struct, frozen=True):
    """An item that is followed over the nights; its key is the same in each of them."""

    kind: str  # prove, lifecycle, eval, matrix, fuzz, mutate
    key: str
    title: str
    release: str = ""
    device: str = ""
    details: tuple[tuple[str, str], ...] = ()  # further facts, by name


class Observation(msgspec.Struct, gc=False):
    """One observation of an item."""

    timestamp: float  # seconds since the epoch
    run_id: str
    outcome: Verdict
    versions: RunVersions
    message: str = ""
    seconds: float = 0.0
    device_seconds: float = 0.0


class NightResult(msgspec.Struct, gc=False):
    """An item in one night: its observations joined."""

    night_index: int  # its index among the nights
    outcome: Verdict
    main_observation: Observation  # the most informative one
    seconds: float = 0.0  # time of all observations
    device_seconds: float = 0.0


class FlakeScore(msgspec.Struct, frozen=True):
    """How often two outcomes of one item with the same versions differ."""

    differing: int
    compared: int

    @property
    def share(self) -> float:
        """The share that differs, as if ten more pairs had been equal."""
        return self.differing / (self.compared + 10)


class Timeline(msgspec.Struct):
    """An item over the nights."""

    item: TrackedItem
    points: list[NightResult]
    state: TimelineState
    score: FlakeScore
    first_failed: int | None = None  # the index of a night
    last_failed: int | None = None
    since_night: int | None = None  # the first night of the present failure
    last_ok: NightResult | None = None  # the last ok night before that
    median_seconds: float = 0.0  # seconds, over its nights
    slowdown: float | None = None  # the newest duration over the median of the earlier ones

    @property
    def is_flaky(self) -> bool:
        """Whether two pairs of equal versions differ, or a retry did; one pair may be a change."""
        return self.score.differing > 1 or any(one.outcome is Verdict.FLAKY for one in self.points)

    @property
    def informative_points(self) -> list[NightResult]:
        return [point for point in self.points if point.outcome is not Verdict.CANNOT_TELL]


class Night(msgspec.Struct):
    """A night, from noon to noon UTC; its day is that of the first noon."""

    day: datetime.date
    runs: list[str] = []
    stopped: list[str] = []  # runs that did not finish
    counts: dict[str, dict[str, int]] = {}  # by kind, by the state of that night
    spent: dict[str, dict[str, float]] = {}  # by kind, by resource, in seconds


class NightHistory(msgspec.Struct):
    """All timelines within a window of time."""

    since: datetime.datetime
    nights: list[Night]
    timelines: list[Timeline]  # the most important first
    notes: list[str] = []

    @property
    def kinds(self) -> list[str]:
        return [kind for kind in KINDS if any(kind in night.counts for night in self.nights)]

    @property
    def counts(self) -> dict[TimelineState, int]:
        counts = dict.fromkeys(TimelineState, 0)
        for line in self.timelines:
            counts[line.state] += 1
        return counts

    @property
    def green(self) -> bool:
        return not any(line.state.is_failing for line in self.timelines)

    def select_by_state(self, *states: TimelineState) -> list[Timeline]:
        return [line for line in self.timelines if line.state in states]


KINDS = ("prove", "lifecycle", "matrix", "eval", "fuzz", "mutate")
