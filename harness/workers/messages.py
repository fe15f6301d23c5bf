"""The messages between a run and its workers, a line of JSON each."""

from __future__ import annotations

import msgspec

from harness.store.prove.values import RepeatMode, SideResult

UNSIDED = "under"  # the side of a task whose request names the toggles
SETTINGS_VARIABLE = "UNFIX_WORKER"  # carries a worker's settings, as JSON
TaskKey = tuple[str, str, str]  # toggle, guard, side


class GuardTask(msgspec.Struct, omit_defaults=True):
    """One side of one cell, as collected."""

    number: int  # in this worker
    guard: str
    toggle: str
    side: str
    state: str
    problem: str = ""  # of a stale toggle
    broken_reason: str = ""  # why the guard is never run
    not_applicable_reason: str = ""  # why it cannot apply, known before it runs

    @property
    def key(self) -> TaskKey:
        return self.toggle, self.guard, self.side


class GuardsCollected(msgspec.Struct, tag=True, omit_defaults=True):
    """A worker is ready: SGLang is imported and the guards are known."""

    tasks: list[GuardTask]
    seconds: float
    device: str
    can_fork: bool  # it runs several tests at a time, each in a fork
    release: str = ""
    problems: list[str] = []


class TaskEnded(msgspec.Struct, tag=True):
    serial: int  # of the request
    side: SideResult
    is_device_lost: bool = False  # the worker cannot go on: its device is lost


class StartFailure(msgspec.Struct, tag=True):
    """The worker could not start; `is_usage_error` blames the command line."""

    problem: str
    is_usage_error: bool = False


class LiveToggleProblems(msgspec.Struct, tag=True):
    """The reply to `LiveToggleQuery`: the toggles that cannot be applied live, with reasons."""

    reasons: dict[str, str]


GuardWorkerMessage = GuardsCollected | TaskEnded | StartFailure | LiveToggleProblems


class LiveToggleQuery(msgspec.Struct, tag=True):
    """Ask which of these toggles can be applied live in the worker's process."""

    toggle_directions: list[tuple[str, str]]


class TestRequest(msgspec.Struct, tag=True):
    """Run one task."""

    number: int
    serial: int  # of this request: a second attempt has another
    seconds: float  # its time limit
    memory: int  # its memory limit in bytes
    toggle_directions: list[tuple[str, str]] = []  # where the task has no side
    random_seed: int | None = None  # seeds the random sources; none: they stay as they are
    repeat_mode: RepeatMode | None = None  # what to run of a test that is repeated
    blob: str = ""  # the example, in that mode
    then_whole: bool = False  # afterwards, run the whole test, for the first time
    fork_limit: int = 500  # in all; a guard that starts servers needs a few dozen


class WorkerSettings(msgspec.Struct, kw_only=True):
    """The settings that every worker gets when it starts."""

    release: str  # as the command line names it
    pytest_arguments: list[str]
    folder: str  # for the files that its processes write
    device: str = "cpu"


class GuardWorkerSettings(WorkerSettings, kw_only=True):
    """The settings of a worker that runs guards."""

    sides: list[str]  # none: each guard once, under the toggles of its request
    toggle_ids: list[str]  # empty: all
