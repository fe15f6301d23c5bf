"""A stored run of `unfix prove` or `lifecycle`: releases, toggles, cells and their sides."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Any, Literal

import msgspec

from harness.core.outcomes import DEATHS, Outcome, RunStatus, Verdict, require_word
from harness.store.run_table import ShardNumber

# The outcomes in which a bug shows itself, once the other side has passed. Hangs, kills and a lack
# of memory depend on the machine, so they prove nothing.
BUG_OUTCOMES = {Outcome.FAILED, Outcome.SEGFAULT, Outcome.ABORT, Outcome.CUDA_ERROR}


def is_expected_outcome(side: str, outcome: Outcome) -> bool:
    """Return whether a side has the outcome that a proof needs: a bug, or a pass."""
    return outcome in BUG_OUTCOMES if side == "buggy" else outcome is Outcome.PASSED


class RepeatMode(StrEnum):
    """The part of a guard that both sides repeat, to distinguish a bug from chance."""

    WHOLE = "whole"  # the whole guard, which draws no examples
    EXAMPLE = "example"  # the example that Hypothesis found
    EXPLICIT = "explicit"  # the guard's explicit examples, one of which failed
    SEARCH = "search"  # the whole search, since an example ended its process


class SideRepetition(msgspec.Struct, omit_defaults=True):
    """One more run of a side."""

    outcome: Outcome
    headline: str = ""
    seconds: float = 0.0
    first: str = ""  # the end of the first attempt, if this is the second


class SideResult(msgspec.Struct):
    """One side of a cell: 'fixed', 'buggy', or 'as is' where nothing is toggled."""

    side: str
    outcome: Outcome
    seconds: float = 0.0  # the test's own
    overhead: float = 0.0  # further seconds of its own process
    reach: int = 0
    ran: dict[str, int] = {}  # the same by toggle
    headline: str = ""  # the failure in one line
    example: list[str] = []  # the smallest failing example, a line each
    detail: str = ""  # the traceback
    output: str = ""  # the end of what it printed
    replay: str = ""  # the command that runs it again
    left: int = 0  # processes that it left behind; the supervisor ended them
    first: str = ""  # the end of the first attempt, if this is the second
    way: RepeatMode = RepeatMode.WHOLE  # the part that is repeated
    blob: str = ""  # the repeated example, as Hypothesis encodes it
    stand_ins: dict[str, int] = {}  # of the virtual GPU: how often each computed
    observed: str = ""  # what the test saw beside its outcome, a line each
    again: list[SideRepetition] = []
    compile_seconds: float = 0.0  # of its seconds: for kernels, which later runs find compiled

    @property
    def total_seconds(self) -> float:
        """Return the seconds of all the side's runs."""
        return self.seconds + sum(again.seconds for again in self.again)


CELL_VERDICTS = (
    *(Verdict.PROVEN, Verdict.TOOTHLESS, Verdict.UNREACHED, Verdict.BROKEN, Verdict.FLAKY),
    *(Verdict.UNDRAWN, Verdict.STALE, Verdict.NA, *(Verdict(death.value) for death in DEATHS)),
    *(Verdict.HAS_BUG, Verdict.HAS_FIX, Verdict.DIFFERS),  # of `lifecycle`, which toggles nothing
)


class CellResult(msgspec.Struct):
    """The result of one guard for one toggle on one release and device."""

    guard: str  # the test's node id without the cell's part
    toggle: str
    release: str
    device: str
    state: str  # of the toggle on the release, from its sources
    verdict: Verdict | None = None  # None: not done yet
    why: str = ""
    order: list[str] = []  # the sides of its runs, in their order
    sides: dict[str, SideResult] = {}
    moment: str = ""  # when its sides changed the code: 'live', 'as its CUDA module is built'

    def __post_init__(self) -> None:
        require_word(self.verdict, CELL_VERDICTS)

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.release, self.device, self.toggle, self.guard

    @property
    def seconds(self) -> float:
        return sum(side.seconds for side in self.sides.values())


class ToggleFacts(msgspec.Struct):
    """The facts of a toggle that a report shows."""

    id: str
    title: str
    family: str
    symptom: str
    upstream: list[int] = []
    why: str = ""


class ReleaseFacts(msgspec.Struct):
    """The facts of a release, recorded when its run began."""

    release: str
    device: str
    versions: dict[str, str] = {}
    machine: dict[str, Any] = {}
    seconds_to_start: float = 0.0  # to import SGLang and collect the guards
    seconds: float = 0.0  # in total
    states: dict[str, str] = {}  # of every toggle, from the sources
    patches: dict[str, str] = {}  # each applicable toggle as a diff
    # Toggles of this release that no guard names; None: the run covers only some guards.
    unguarded: list[str] | None = None
    # The toggles that no guard names and that suites/proof_exceptions.yaml lists, with its reasons.
    expected_unguarded: dict[str, str] = {}
    problems: list[str] = []  # files that could not be collected, an environment that died


ProveKind = Literal["prove", "lifecycle"]


class ProveRun(msgspec.Struct):
    """One call of `prove` or `lifecycle` with its results."""

    id: str
    kind: ProveKind
    started: str  # ISO 8601, UTC
    status: RunStatus = RunStatus.RUNNING  # running, finished, stopped
    seconds: float = 0.0
    command: list[str] = []
    settings: dict[str, Any] = {}
    releases: list[ReleaseFacts] = []
    toggles: list[ToggleFacts] = []
    cells: list[CellResult] = []

    @property
    def shard(self) -> tuple[int, int]:
        """The part of the cells that this run has, and the number of parts."""
        words = str(self.settings.get("shard", "1/1")).split("/")
        return msgspec.convert(words, tuple[ShardNumber, ShardNumber], strict=False)

    @property
    def counts(self) -> dict[str, int]:
        """Count the cells by verdict, with 'missing' for cells without one."""
        return dict(
            Counter(cell.verdict.value if cell.verdict else "missing" for cell in self.cells)
        )

    @property
    def summary(self) -> str:
        return ", ".join(f"{count} {name}" for name, count in self.counts.items())

    @property
    def problems(self) -> list[str]:
        """Return every reason why the run is not green."""
        problems = [f"{on.release}: {problem}" for on in self.releases for problem in on.problems]
        problems += [
            f"{on.release}: no guard names {toggle}"
            for on in self.releases
            for toggle in on.unguarded or ()
        ]
        problems += [
            f"{cell.release}: {cell.toggle} {cell.verdict.value}: {cell.guard}"
            for cell in self.cells
            if cell.verdict and not cell.verdict.is_good
        ]
        missing = self.counts.get("missing", 0)
        if missing:
            problems.append(f"{missing} cell{'s have' if missing > 1 else ' has'} no verdict")
        problems += [
            f"{problem}: there may be more cells than these" for problem in self.status.problems
        ]
        if not any(cell.verdict is not Verdict.NA for cell in self.cells):
            problems.append("no guard applied: nothing is proven")
        return problems

    @property
    def green(self) -> bool:
        return not self.problems
