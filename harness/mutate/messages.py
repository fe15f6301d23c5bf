"""What a mutation run and its worker say to each other, a line of JSON each."""

from __future__ import annotations

import msgspec

from harness.prove.messages import AnySetting, Failed
from harness.store.mutate.faults import Fault
from harness.store.prove.values import Outcome, Side

PASSES = (Outcome.PASSED, Outcome.NA, Outcome.SKIPPED)


class Setting(AnySetting, kw_only=True):
    """What a worker is told when it starts."""


class Asked(msgspec.Struct):
    """A guard that is to run, and how long it may take."""

    number: int  # the worker's own
    seconds: float


class Look(msgspec.Struct, tag=True):
    """Run these guards in one fork, with a fault in, until one fails."""

    serial: int
    guards: list[Asked]
    memory: int  # bytes
    fault: Fault | None = None  # none: how they are without one
    trace: bool = False  # which lines they run
    examples: int = 1  # times as many as usual
    keep_shrinking: bool = False  # a counterexample as small as can be


class Load(msgspec.Struct, tag=True):
    """Import these modules now, so that no fork has to."""

    modules: list[str]


Orders = Look | Load


class Collected(msgspec.Struct, tag=True):
    """A worker is ready: SGLang is imported and the guards are known."""

    guards: list[str]
    seconds: float
    release: str
    versions: dict[str, str]
    problems: list[str] = []


class Ran(msgspec.Struct):
    """One guard that came to an end."""

    number: int
    side: Side
    ran: int = 0  # how often the fault's code ran meanwhile
    conflict: str = ""  # it did not run: what it changes itself is the fault's own place


class Traced(msgspec.Struct):
    """What a guard ran without any fault."""

    lines: dict[str, list[int]]  # of SGLang's modules
    imported: list[str]  # modules of SGLang that it was the first to import


class Looked(msgspec.Struct, tag=True):
    """What came of a look: each guard that ended, and who did not."""

    serial: int
    ended: list[Ran]
    last: Side  # how the fork itself ended
    ran: int = 0  # how often the fault's code ran
    not_live: str = ""  # the fault cannot be put into a living process
    traced: Traced | None = None


Said = Collected | Looked | Failed
