"""What a fuzzing run and its workers say to each other, and what a run comes to."""

from __future__ import annotations

import msgspec

from harness.workers.messages import StartFailure, WorkerSettings

ToggleDirections = list[tuple[str, str]]  # toggles, and in which direction each is


class FuzzWorkerSettings(WorkerSettings, kw_only=True):
    """What a worker is told when it starts."""

    under: ToggleDirections
    corpus: str  # the example database


class FuzzTask(msgspec.Struct, omit_defaults=True):
    """One test, as collected."""

    number: int  # this worker's own
    name: str  # its node
    left_out: str = ""  # why it cannot be fuzzed
    covered_files: list[str] = []  # whose lines are looked at while it runs


class CodeFile(msgspec.Struct):
    """A file of the release that toggles change: its lines, and those of the toggled functions."""

    path: str
    name: str  # as people say it
    lines: list[int]
    toggled_lines: list[int]


class FuzzTestsCollected(msgspec.Struct, tag=True):
    """A worker is ready: SGLang is imported and the tests are known."""

    tests: list[FuzzTask]
    code_files: list[CodeFile]
    release: str
    seconds: float
    versions: dict[str, str]
    problems: list[str]


class TimeSliceEnded(msgspec.Struct, tag=True):
    """A slice's process has ended; what it said lies in the worker's folder."""

    serial: int
    outcome: str
    headline: str
    detail: str
    example: list[str]
    left: int = 0


FuzzWorkerMessage = FuzzTestsCollected | StartFailure | TimeSliceEnded


class TimeSlice(msgspec.Struct, omit_defaults=True):
    """Run one test for a while, in a process of its own."""

    test_number: int
    serial: int
    seed: int
    memory: int
    generate_until: float  # on the machine's monotonic clock, as are all times here
    shrink_until: float
    end_after: float  # seconds until its process is ended
    known_failures: list[str] = []  # failures that are not looked at again
    first_blobs: list[str] = []  # examples that come first
    replay_blob: str = ""  # one example, and nothing else
    max_examples: int = 1_000_000  # examples
    examples_before: int = 0  # examples that earlier slices of the test have run


class FoundFailure(msgspec.Struct):
    """A way in which a test failed, and its smallest example so far."""

    error: str  # the exception's type
    where: str  # the innermost frame in SGLang or in a suite
    kind: str  # what more tells it apart: the kernel of a report
    headline: str
    arguments: list[str]
    blob: str
    examples: int = 0  # until it was found
    shrunk: bool = False

    @property
    def key(self) -> str:
        return " | ".join(part for part in (self.error, self.where, self.kind) if part)


class TimeSliceResult(msgspec.Struct):
    """What a slice came to, as its own process tells it."""

    examples: int
    seconds: float
    known_failure_counts: dict[str, int]
    targets: dict[str, float]
    covered_lines: dict[str, list[int]]
    failures: list[FoundFailure]
    exhausted: bool = False  # every possible example has been run
    problem: str = ""  # what keeps the run from going on: a full disk


class ExampleNote(msgspec.Struct):
    """What a slice is doing now: read by others, also when it has died."""

    pid: int
    started: float
    examples: int
    is_running: bool
    blob: str
    arguments: list[str]


class FailureRecord(msgspec.Struct, forbid_unknown_fields=True):
    """A failure as a file: all that is needed to run it again, and to read it."""

    format: int
    test: str
    error: str
    where: str
    kind: str
    headline: str
    release: str
    under: ToggleDirections
    blob: str
    arguments: list[str]
    date: str
    versions: dict[str, str]
    seed: int
    shrunk: bool
    examples: int
    detail: str


class RunFailure(msgspec.Struct):
    """A failure of this run."""

    name: str
    file: str
    replay: str
    repro: FailureRecord
    again: int = 0  # how often it came up after it was known


class FuzzTestResult(msgspec.Struct):
    """A test of this run, on one release."""

    test: str
    release: str
    examples: int = 0
    seconds: float = 0.0
    slices: int = 0
    targets: dict[str, float] = {}
    left_out: str = ""
    exhausted: bool = False


class FileCoverage(msgspec.Struct):
    """How much of a file that toggles change has run."""

    release: str
    file: str
    toggled: int
    toggled_of: int
    lines: int
    lines_of: int


class FuzzResult(msgspec.Struct):
    """A run, as it stands."""

    seed: int
    budget: float
    under: ToggleDirections
    seconds: float = 0.0
    status: str = "running"
    tests: list[FuzzTestResult] = []
    coverage: list[FileCoverage] = []
    failures: list[RunFailure] = []
    problems: list[str] = []

    @property
    def examples(self) -> int:
        return sum(test.examples for test in self.tests)
