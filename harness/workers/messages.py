"""The messages between a run and its workers, a line of JSON each."""

from __future__ import annotations

import msgspec

from harness.store.prove.values import RepeatMode, SideResult

UNSIDED = "under"  # the side of a task whose request names the toggles
SETTINGS_VARIABLE = "UNFIX_WORKER"  # carries a worker's settings, as JSON
TaskKey = tuple[str, str, str]  # toggle, guard, side


class GuardTask(msgspec.Struct, omit_defaults=True):
    """One side of one cell, as collected."""

    number: int  # its number in this worker
    guard: str
    toggle: str
    side: str
    state: str
    problem: str = ""  # the error of a stale toggle
    broken_reason: str = ""  # the reason why the guard never runs
    not_applicable_reason: str = ""  # the reason why it cannot apply, known before it runs
    prepared: tuple[str, ...] = ()  # what is prepared for it by name, such as CUDA modules
    moment: str = ""  # when its side changes the code

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
    serial: int  # the request's number
    side: SideResult
    is_device_lost: bool = False  # the worker cannot go on: its device is lost


class StartFailure(msgspec.Struct, tag=True):
    """A failure to start the worker; `is_usage_error` blames the command line."""

    problem: str
    is_usage_error: bool = False


class LiveToggleProblems(msgspec.Struct, tag=True):
    """The reply to `LiveToggleQuery`: the toggles that cannot be applied live, and the reasons."""

    reasons: dict[str, str]


GuardWorkerMessage = GuardsCollected | TaskEnded | StartFailure | LiveToggleProblems


class LiveToggleQuery(msgspec.Struct, tag=True):
    """A question: which of these toggles can be applied live in the worker's process?"""

    toggle_directions: list[tuple[str, str]]


class TestRequest(msgspec.Struct, tag=True):
    """A request to run one task."""

    number: int = 0
    serial: int = 0  # this request's number; a second attempt has another
    seconds: float = 0.0  # its time limit
    memory: int = 0  # its memory limit in bytes
    side: str = UNSIDED  # the side to run
    toggle_directions: list[tuple[str, str]] = []  # for a task without a side
    random_seed: int | None = None  # the seed of the random sources; None: no seeding
    repeat_mode: RepeatMode | None = None  # the part of a repeated test to run
    blob: str = ""  # the example, in that mode
    then_whole: bool = False  # whether the whole test then runs, for the first time
    fork_limit: int = 500  # total number of forks; guards with servers need a few dozen


class WorkerSettings(msgspec.Struct, kw_only=True):
    """The settings of every worker."""

    release: str  # its name on the command line
    pytest_arguments: list[str]
    folder: str  # the folder for its processes' files
    device: str = "cpu"
    shares_processes: bool = False  # many tests in one process, in place of a fork for each
    jobs: int = 1  # tests at a time
    is_shared_process: bool = False  # it runs the tests itself, for a supervisor


class GuardWorkerSettings(WorkerSettings, kw_only=True):
    """The settings of a worker that runs guards."""

    sides: list[str]  # empty: each guard once, under its request's toggles
    toggle_ids: list[str]  # empty: all
    run_folders: str = ""  # the parent of the folders that runs may write; empty: no limits
