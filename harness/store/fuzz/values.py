"""A run of `unfix fuzz`: its tests, its coverage, and its failures."""

from __future__ import annotations

import msgspec

from harness.core.outcomes import RunStatus
from harness.core.wording import format_count

ToggleDirections = list[tuple[str, str]]  # each toggle with its direction


class FoundFailure(msgspec.Struct):
    """One kind of failure of a test, and its smallest example so far."""

    error: str  # the exception's type
    where: str  # the innermost frame in SGLang or in a suite
    kind: str  # the kernel, for a checked kernel's report
    headline: str
    arguments: list[str]
    blob: str
    examples: int = 0  # number of examples until its discovery
    shrunk: bool = False

    @property
    def key(self) -> str:
        return " | ".join(part for part in (self.error, self.where, self.kind) if part)


class FailureRecord(FoundFailure, kw_only=True, forbid_unknown_fields=True):
    """A failure as a file, with everything that a replay and a reader need."""

    format: int
    test: str
    release: str
    under: ToggleDirections
    date: str
    versions: dict[str, str]
    seed: int
    detail: str

    def format_file(self) -> str:
        """Return the text of its file, for `--replay`."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode() + "\n"


class RunFailure(msgspec.Struct):
    """A failure of this run."""

    name: str
    file: str
    replay: str
    repro: FailureRecord
    again: int = 0  # number of later finds in this run
    known: list[str] = []  # toggles of a bug that the release has: with their fixes, it passes


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
    stand_ins: dict[str, int] = {}
    compile_seconds: float = 0.0  # of its seconds: for kernels


class FileCoverage(msgspec.Struct):
    """The coverage of a file that toggles change."""

    release: str
    file: str
    toggled: int
    toggled_of: int
    lines: int
    lines_of: int


class FuzzRun(msgspec.Struct):
    """One call of `unfix fuzz`, during the run and at its end."""

    id: str
    started: str  # ISO 8601, UTC
    seed: int = 0
    budget: float = 0.0  # seconds
    under: ToggleDirections = []
    seconds: float = 0.0  # since the start, with the imports
    search_seconds: float = 0.0  # since the first release was imported: the budget's time
    status: RunStatus = RunStatus.RUNNING  # running, finished, stopped
    tests: list[FuzzTestResult] = []
    coverage: list[FileCoverage] = []
    failures: list[RunFailure] = []
    problems: list[str] = []
    device: str = ""
    command: list[str] = []
    commit: str = ""  # of unfix

    @property
    def examples(self) -> int:
        return sum(test.examples for test in self.tests)

    @property
    def new_failures(self) -> list[RunFailure]:
        """The failures that no known bug of the release explains."""
        return [failure for failure in self.failures if not failure.known]

    @property
    def green(self) -> bool:
        return self.status is RunStatus.FINISHED and not self.new_failures and not self.problems

    @property
    def failure_words(self) -> str:
        known_count = len(self.failures) - len(self.new_failures)
        known = f", {known_count} known" if known_count else ""
        return f"{format_count(len(self.new_failures), 'failure')}{known}"

    @property
    def summary(self) -> str:
        return f"{format_count(self.examples, 'example')}; {self.failure_words}"
