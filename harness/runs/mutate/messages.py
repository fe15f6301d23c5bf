"""What a mutation run and its worker say to each other, a line of JSON each."""

from __future__ import annotations

import msgspec

from harness.store.mutate.faults import MutationFault
from harness.store.prove.values import SideOutcome, SideResult
from harness.workers.messages import StartFailure, WorkerSettings

PASSING_OUTCOMES = (SideOutcome.PASSED, SideOutcome.NA, SideOutcome.SKIPPED)


class MutationWorkerSettings(WorkerSettings, kw_only=True):
    """What a worker is told when it starts."""


class GuardRequest(msgspec.Struct):
    """A guard that is to run, and how long it may take."""

    guard_number: int  # the worker's own
    seconds: float


class FaultAttemptRequest(msgspec.Struct, tag=True):
    """Run these guards in one fork, with a fault in, until one fails."""

    serial: int
    guards: list[GuardRequest]
    memory_bytes: int  # bytes
    fault: MutationFault | None = None  # none: how they are without one
    trace: bool = False  # which lines they run
    example_factor: int = 1  # times as many as usual
    keep_shrinking: bool = False  # a counterexample as small as can be


class ImportModulesRequest(msgspec.Struct, tag=True):
    """Import these modules now, so that no fork has to."""

    modules: list[str]


MutationWorkerRequest = FaultAttemptRequest | ImportModulesRequest


class MutationWorkerReady(msgspec.Struct, tag=True):
    """A worker is ready: SGLang is imported and the guards are known."""

    guards: list[str]
    seconds: float
    release: str
    versions: dict[str, str]
    problems: list[str] = []


class GuardResult(msgspec.Struct):
    """One guard that came to an end."""

    guard_number: int
    side: SideResult
    reach: int = 0  # how often the fault's code ran meanwhile
    conflict: str = ""  # it did not run: what it changes itself is the fault's own place


class GuardTrace(msgspec.Struct):
    """What a guard ran without any fault."""

    lines: dict[str, list[int]]  # of SGLang's modules
    imported: list[str]  # modules of SGLang that it was the first to import


class FaultAttemptReport(msgspec.Struct, tag=True):
    """What came of a look: each guard that ended, and who did not."""

    serial: int
    results: list[GuardResult]
    fork_side: SideResult  # how the fork itself ended
    reach: int = 0  # how often the fault's code ran
    not_live_reason: str = ""  # the fault cannot be put into a living process
    trace: GuardTrace | None = None


MutationWorkerMessage = MutationWorkerReady | FaultAttemptReport | StartFailure
