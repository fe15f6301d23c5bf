"""A stored run whose items one worker process of a release ran in lanes: a zoo, a rehearsal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from harness.core.outcomes import RunStatus, Verdict
from harness.store.run_table import RunTable


class LaneResult(Protocol):
    """The result of one item."""

    name: str
    seconds: float
    functions: dict[str, list[str]]  # of SGLang that ran, by module
    lines: dict[str, list[int]]  # of the files that a review traces, by module

    @property
    def verdict(self) -> Verdict: ...

    @property
    def kernels(self) -> Mapping[str, Any]:
        """What is known of each launched kernel, `module:name`."""
        ...


class LaneRun(msgspec.Struct, kw_only=True):
    """What each such run has; a kind adds the list of its results."""

    id: str
    started: str  # ISO 8601, UTC
    release: str
    status: RunStatus = RunStatus.RUNNING  # running, finished, stopped
    seconds: float = 0.0
    command: list[str] = []
    versions: dict[str, str] = {}
    machine: dict[str, Any] = {}
    code: str = ""  # a digest of our code; empty where it is not known, or SGLang may change
    toggles: list[str] = []  # reverted or enabled in this run, such as "-27460"
    planned: list[str] = []  # names of the items
    seconds_to_import: float = 0.0

    @property
    def results(self) -> list[Any]:
        """The list of the kind's results, in the order in which they came."""
        raise NotImplementedError

    @property
    def problems(self) -> list[str]:
        """Return every reason why the run is not green; a kind puts its own before these."""
        problems = []
        missing = set(self.planned) - {result.name for result in self.results}
        if missing:
            problems.append(f"not run: {', '.join(sorted(missing))}")
        problems += self.status.problems
        return problems

    @property
    def green(self) -> bool:
        return not self.problems


LaneRunT = TypeVar("LaneRunT", bound=LaneRun)


class LaneRunTable(RunTable[LaneRunT, LaneRunT]):
    """Such runs in a store; each result is written at once."""

    def save_result(self, run_id: str, number: int, result: LaneResult) -> None:
        (field,) = self.item_types
        self.save_item(
            *(run_id, field, result),
            owner=result.name,
            position=number,
            outcome=result.verdict.value,
            seconds=result.seconds,
        )
