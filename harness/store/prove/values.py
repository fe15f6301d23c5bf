"""What a run leaves behind, as values: the releases it met, its toggles, cells and their sides."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec


class CellVerdict(StrEnum):
    """What one cell came to."""

    PROVEN = "proven"
    TOOTHLESS = "toothless"
    UNREACHED = "unreached"
    BROKEN = "broken"
    FLAKY = "flaky"
    STALE = "stale"
    NA = "n/a"
    SEGFAULT = "segfault"
    ABORT = "abort"
    KILLED = "killed"
    HANG = "hang"
    OUT_OF_MEMORY = "out-of-memory"
    CUDA_ERROR = "cuda-error"
    # Of `lifecycle`, where nothing is toggled:
    HAS_BUG = "has the bug"
    HAS_FIX = "has the fix"
    DIFFERS = "differs"

    @property
    def is_good(self) -> bool:
        return self in (
            CellVerdict.PROVEN,
            CellVerdict.NA,
            CellVerdict.HAS_BUG,
            CellVerdict.HAS_FIX,
        )


class SideOutcome(StrEnum):
    """How one side of a cell ended, before anybody judges it."""

    PASSED = "passed"
    FAILED = "failed"  # in the guard's own way: an assertion, a report of a checked kernel
    ERROR = "error"  # in any other way: a fixture, an import, an exception
    FLAKY = "flaky"  # Hypothesis saw one example fail and pass
    SKIPPED = "skipped"
    NA = "n/a"  # the guard says with a reason that it cannot apply here
    SEGFAULT = "segfault"
    ABORT = "abort"
    KILLED = "killed"  # by another signal
    HANG = "hang"
    OUT_OF_MEMORY = "out-of-memory"
    CUDA_ERROR = "cuda-error"
    EXITED = "exited"  # the process ended in the middle of the test, by itself
    LOST = "lost"  # its supervisor died with it


# The outcomes in which a bug shows itself, once the other side has passed. Hangs, kills and a lack
# of memory depend on the machine, so they prove nothing.
BUG_OUTCOMES = {SideOutcome.FAILED, SideOutcome.SEGFAULT, SideOutcome.ABORT, SideOutcome.CUDA_ERROR}


def is_expected_outcome(side: str, outcome: SideOutcome) -> bool:
    """Whether an outcome on one side is the one that a proof needs: a bug, or a pass."""
    return outcome in BUG_OUTCOMES if side == "buggy" else outcome is SideOutcome.PASSED


class RepeatMode(StrEnum):
    """What of a guard is run again, on both sides alike, to tell its bug from chance."""

    WHOLE = "whole"  # all of it: it draws nothing
    EXAMPLE = "example"  # the one that Hypothesis found
    EXPLICIT = "explicit"  # the examples that are written beside it: one of them failed
    SEARCH = "search"  # all of it, looked for as long as with the fix out: its process died of it


class SideRepetition(msgspec.Struct, omit_defaults=True):
    """A further time that a side was run."""

    outcome: SideOutcome
    headline: str = ""
    seconds: float = 0.0
    run: str = ""  # the earlier run that it is taken from; empty: this one
    first: str = ""  # what ended a first attempt, if this is the second


class SideResult(msgspec.Struct):
    """One side of a cell: 'fixed', 'buggy', or 'as is' where nothing is toggled."""

    side: str
    outcome: SideOutcome
    seconds: float = 0.0  # the test's own
    overhead: float = 0.0  # what running it apart cost beyond that
    reach: int = 0
    ran: dict[str, int] = {}  # the same by toggle
    headline: str = ""  # the failure in one line
    example: list[str] = []  # the smallest failing example, a line each
    detail: str = ""  # the traceback
    output: str = ""  # the end of what it printed
    replay: str = ""  # the command that runs it again
    left: int = 0  # processes it left behind, since ended
    first: str = ""  # what ended a first attempt, if this is the second
    way: RepeatMode = RepeatMode.WHOLE  # what of it is run again
    blob: str = ""  # the example that is, in Hypothesis's words
    again: list[SideRepetition] = []

    @property
    def total_seconds(self) -> float:
        """Seconds of all its runs."""
        return self.seconds + sum(again.seconds for again in self.again)


class CellResult(msgspec.Struct):
    """A guard, a toggle, a release, a device."""

    guard: str  # the test's node id without the cell's part
    toggle: str
    release: str
    device: str
    state: str  # of the toggle on the release, from its sources
    verdict: CellVerdict | None = None  # None: not done yet
    why: str = ""
    sides: dict[str, SideResult] = {}

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.release, self.device, self.toggle, self.guard

    @property
    def seconds(self) -> float:
        return sum(side.seconds for side in self.sides.values())


class ToggleFacts(msgspec.Struct):
    """What a report says of a toggle."""

    id: str
    title: str
    family: str
    symptom: str
    upstream: list[int] = []
    why: str = ""


class ReleaseFacts(msgspec.Struct):
    """A release as a run met it."""

    release: str
    device: str
    versions: dict[str, str] = {}
    machine: dict[str, Any] = {}
    seconds_to_start: float = 0.0  # importing SGLang and collecting the guards
    seconds: float = 0.0  # all of it
    states: dict[str, str] = {}  # of every toggle, from the sources
    patches: dict[str, str] = {}  # each applicable toggle as a diff
    # Toggles that are in this release and that no guard names; None: a part was asked for.
    unguarded: list[str] | None = None
    # Of these, what no suite reaches yet as its file says, which keeps no run from being green.
    known_unguarded: list[str] = []
    problems: list[str] = []  # files that could not be collected, an environment that died


class ProveRun(msgspec.Struct):
    """One call of `prove` or `lifecycle`, with all it found."""

    id: str
    kind: str  # "prove" or "lifecycle"
    started: str  # ISO 8601, UTC
    status: str = "running"  # running, finished, stopped
    seconds: float = 0.0
    command: list[str] = []
    settings: dict[str, Any] = {}
    releases: list[ReleaseFacts] = []
    toggles: list[ToggleFacts] = []
    cells: list[CellResult] = []

    @property
    def counts(self) -> dict[str, int]:
        """Cells by verdict; 'missing' for those without one."""
        found: dict[str, int] = {}
        for cell in self.cells:
            name = cell.verdict.value if cell.verdict else "missing"
            found[name] = found.get(name, 0) + 1
        return found

    @property
    def summary(self) -> str:
        return ", ".join(f"{count} {name}" for name, count in self.counts.items())

    @property
    def problems(self) -> list[str]:
        """Everything that keeps a run from being green."""
        found = [f"{on.release}: {problem}" for on in self.releases for problem in on.problems]
        found += [
            f"{on.release}: no guard names {toggle}"
            for on in self.releases
            for toggle in on.unguarded or ()
        ]
        bad = [cell for cell in self.cells if cell.verdict and not cell.verdict.is_good]
        found += [f"{c.release}: {c.toggle} {c.verdict.value}: {c.guard}" for c in bad if c.verdict]
        missing = self.counts.get("missing", 0)
        if missing:
            found.append(f"{missing} cell{'s have' if missing > 1 else ' has'} no verdict")
        if self.status != "finished":
            going = "is still going on" if self.status == "running" else "was stopped"
            found.append(f"the run {going}: there may be more cells than these")
        if not any(cell.verdict is not CellVerdict.NA for cell in self.cells):
            found.append("no guard applied: nothing is proven")
        return found

    @property
    def green(self) -> bool:
        return not self.problems
