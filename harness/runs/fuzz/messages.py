"""The messages between a fuzzing run and its workers."""

from __future__ import annotations

import msgspec

from harness.store.fuzz.values import FoundFailure, ToggleDirections
from harness.workers.messages import StartFailure, WorkerSettings


class FuzzWorkerSettings(WorkerSettings, kw_only=True):
    """The settings of a worker."""

    under: ToggleDirections
    corpus: str  # the example database


class FuzzTask(msgspec.Struct, omit_defaults=True):
    """One test, as collected."""

    number: int  # its number in this worker
    name: str  # its node
    left_out: str = ""  # the reason why it cannot be fuzzed
    covered_files: list[str] = []  # files with traced lines
    unfixed_toggles: list[str] = []  # its toggles whose bug this release has, and this run leaves


class CodeFile(msgspec.Struct):
    """A file that toggles change, with its lines and those of the toggled functions."""

    path: str
    name: str  # its path in the package: sglang/srt/…
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
    """The end of a slice's process; the result is a file in the worker's folder."""

    serial: int
    outcome: str
    headline: str
    detail: str
    example: list[str]
    left: int = 0
    unrepeated: list[str] = []  # failures in a process that had run others, not in a new one


FuzzWorkerMessage = FuzzTestsCollected | StartFailure | TimeSliceEnded


class TimeSlice(msgspec.Struct, omit_defaults=True):
    """A request to run one test for a while, in a process of its own."""

    test_number: int
    seed: int
    memory: int
    generate_until: float  # on the machine's monotonic clock, like all times here
    shrink_until: float
    end_after: float  # seconds until the run ends its process
    serial: int = 0
    known_failures: list[str] = []  # keys of failures that count as passes
    first_blobs: list[str] = []  # examples to run first
    replay_blob: str = ""  # the only example, for a replay
    max_examples: int = 1_000_000  # limit of the number of examples
    examples_before: int = 0  # number of examples in the test's earlier slices
    enable: list[str] = []  # toggles to apply in this slice, beside those of the run


class TimeSliceResult(msgspec.Struct):
    """The result of a slice, from the slice's own process."""

    examples: int
    seconds: float
    known_failure_counts: dict[str, int]
    targets: dict[str, float]
    covered_lines: dict[str, list[int]]
    failures: list[FoundFailure]
    exhausted: bool = False  # no further example is possible
    stand_ins: dict[str, int] = {}  # of the virtual GPU: how often each computed
    compile_seconds: float = 0.0  # of its seconds: for kernels
    problem: str = ""  # the reason why the run cannot go on, such as a full disk


class ExampleNote(msgspec.Struct):
    """The present example of a slice, which other processes read, even after the slice's death."""

    pid: int
    started: float
    examples: int
    is_running: bool
    blob: str
    arguments: list[str]
