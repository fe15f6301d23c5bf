"""A stored run of `unfix fuzz`: its tests and their failures."""

from __future__ import annotations

import msgspec


class FuzzedTest(msgspec.Struct):
    """A test on one release, with the number of its examples."""

    test: str
    release: str
    examples: int
    seconds: float
    left_out: str = ""
    stand_ins: dict[str, int] = {}  # of the virtual GPU: how often each computed


class FuzzFailure(msgspec.Struct):
    """A failure. Its name is the same in every run that finds it."""

    name: str
    test: str
    release: str
    headline: str
    file: str  # the text of a file for `--replay`
    known: list[str] = []  # toggles of a bug that the release has, whose fixes remove the failure


class FuzzRun(msgspec.Struct):
    """One call of `unfix fuzz`."""

    id: str
    started: str  # ISO 8601, UTC
    status: str = "running"  # running, finished, stopped
    seconds: float = 0.0
    command: list[str] = []
    commit: str = ""  # of unfix
    under: list[tuple[str, str]] = []  # toggles with their directions
    tests: list[FuzzedTest] = []
    failures: list[FuzzFailure] = []
    problems: list[str] = []
    device: str = ""

    @property
    def green(self) -> bool:
        return (
            self.status == "finished"
            and all(failure.known for failure in self.failures)
            and not self.problems
        )
