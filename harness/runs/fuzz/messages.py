"""The messages between a fuzzing run and its workers, and the result of a run."""

from __future__ import annotations

import msgspec

from harness.workers.messages import StartFailure, WorkerSettings

ToggleDirections = list[tuple[str, str]]  # a toggle, and the direction in which it is applied


class FuzzWorkerSettings(WorkerSettings, kw_only=True):
    """The settings that a worker starts with."""

    under: ToggleDirections
    corpus: str  # the example database


class FuzzTask(msgspec.Struct, omit_defaults=True):
    """One test, as collected."""

    number: int  # in this worker
    name: str  # its node
    left_out: str = ""  # why it cannot be fuzzed
    covered_files: list[str] = []  # whose lines are traced while it runs


class CodeFile(msgspec.Struct):
    """A file of the release that toggles change: its lines, and those of the toggled functions."""

    path: str
    name: str  # from the package on: sglang/srt/…
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
    """A slice's process has ended; its result is a file in the worker's folder."""

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
    known_failures: list[str] = []  # keys of failures that count as passed
    first_blobs: list[str] = []  # examples that come first
    replay_blob: str = ""  # run this example and nothing else
    max_examples: int = 1_000_000  # examples
    examples_before: int = 0  # examples that earlier slices of the test have run


class FoundFailure(msgspec.Struct):
    """One kind of failure of a test, and its smallest example so far."""

    error: str  # the exception's type
    where: str  # the innermost frame in SGLang or in a suite
    kind: str  # the kernel, where the failure is a report of a checked kernel
    headline: str
    arguments: list[str]
    blob: str
    examples: int = 0  # examples run until it was found
    shrunk: bool = False

    @property
    def key(self) -> str:
        return " | ".join(part for part in (self.error, self.where, self.kind) if part)


class TimeSliceResult(msgspec.Struct):
    """The result of a slice, written by the slice's own process."""

    examples: int
    seconds: float
    known_failure_counts: dict[str, int]
    targets: dict[str, float]
    covered_lines: dict[str, list[int]]
    failures: list[FoundFailure]
    exhausted: bool = False  # every possible example has been run
    problem: str = ""  # why the run cannot go on: a full disk


class ExampleNote(msgspec.Struct):
    """The example that a slice runs now; others read it, also after the slice has died."""

    pid: int
    started: float
    examples: int
    is_running: bool
    blob: str
    arguments: list[str]


class FailureRecord(FoundFailure, kw_only=True, forbid_unknown_fields=True):
    """A failure as a file: all that is needed to run its example again, and to read it."""

    format: int
    test: str
    release: str
    under: ToggleDirections
    date: str
    versions: dict[str, str]
    seed: int
    detail: str


class RunFailure(msgspec.Struct):
    """A failure of this run."""

    name: str
    file: str
    replay: str
    repro: FailureRecord
    again: int = 0  # how often it was found again in this run


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
