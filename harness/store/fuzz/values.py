"""What a run of `unfix fuzz` leaves behind, as values: what was searched, and what failed there."""

from __future__ import annotations

import msgspec


class FuzzedTest(msgspec.Struct):
    """A test, on one release, for as long as its share of the budget was."""

    test: str
    release: str
    examples: int
    seconds: float
    left_out: str = ""


class FuzzFailure(msgspec.Struct):
    """A failure under its name, which is the same every night."""

    name: str
    test: str
    release: str
    headline: str
    file: str  # what `--replay` takes, by its text


class FuzzRun(msgspec.Struct):
    """One call of `unfix fuzz`."""

    id: str
    started: str  # ISO 8601, UTC
    status: str = "running"  # running, finished, stopped
    seconds: float = 0.0
    command: list[str] = []
    commit: str = ""  # unfix's own
    under: list[tuple[str, str]] = []  # toggles, and in which direction each is
    tests: list[FuzzedTest] = []
    failures: list[FuzzFailure] = []
    problems: list[str] = []

    @property
    def green(self) -> bool:
        return self.status == "finished" and not self.failures and not self.problems
