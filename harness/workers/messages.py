"""What a run and its workers say to each other, a line of JSON each."""

from __future__ import annotations

import msgspec

from harness.store.prove.values import RepeatMode, SideResult

UNSIDED = "under"  # the side of a task that is run under whatever an order says
SETTINGS_VARIABLE = "UNFIX_WORKER"  # carries a worker's settings, as JSON
TaskKey = tuple[str, str, str]  # toggle, guard, side


class GuardTask(msgspec.Struct, omit_defaults=True):
    """One side of one cell, as collected."""

    number: int  # this worker's own
    guard: str
    toggle: str
    side: str
    state: str
    problem: str = ""  # of a stale toggle
    broken_reason: str = ""  # why it is no guard: it is never run
    not_applicable_reason: str = ""  # why it cannot apply, known before it runs

    @property
    def key(self) -> TaskKey:
        return self.toggle, self.guard, self.side


class GuardsCollected(msgspec.Struct, tag=True, omit_defaults=True):
    """A worker is ready: SGLang is imported and the guards are known."""

    tasks: list[GuardTask]
    seconds: float
    device: str
    can_fork: bool  # whether it runs several at a time, each in a fork
    release: str = ""
    problems: list[str] = []


class TaskEnded(msgspec.Struct, tag=True):
    serial: int  # of the order
    side: SideResult
    is_device_lost: bool = False  # the worker cannot go on: its device is lost


class StartFailure(msgspec.Struct, tag=True):
    """The worker could not even begin; a wrong call is the caller's to mend."""

    problem: str
    is_usage_error: bool = False


class LiveToggleProblems(msgspec.Struct, tag=True):
    """The answer to `Fit`: those that cannot be put in, and why."""

    reasons: dict[str, str]


GuardWorkerMessage = GuardsCollected | TaskEnded | StartFailure | LiveToggleProblems


class LiveToggleQuery(msgspec.Struct, tag=True):
    """Which of these toggles can be put into this process at all?"""

    toggle_directions: list[tuple[str, str]]


class TestRequest(msgspec.Struct, tag=True):
    """Run one task."""

    number: int
    serial: int  # of this order: a second chance has another
    seconds: float  # its time limit
    memory: int  # its memory limit in bytes
    toggle_directions: list[
        tuple[str, str]
    ] = []  # toggles and directions, where the task has no side
    random_seed: int | None = None  # seeds what draws at random; none: as the worker is
    repeat_mode: RepeatMode | None = None  # what of it, where it runs again
    blob: str = ""  # the example, where it is one
    then_whole: bool = False  # and behind that all of it, which has not run yet
    fork_limit: int = 500  # of it and all below it; a guard that starts servers needs a few dozen


class WorkerSettings(msgspec.Struct, kw_only=True):
    """What every worker is told when it starts."""

    release: str  # as it was asked for
    pytest_arguments: list[str]  # pytest's arguments
    folder: str  # where its processes leave what they found
    device: str = "cpu"


class GuardWorkerSettings(WorkerSettings, kw_only=True):
    """What one that runs guards is told."""

    sides: list[str]  # none: each guard once, under whatever toggles an order says
    toggle_ids: list[str]  # the ids of those asked for; empty: all
