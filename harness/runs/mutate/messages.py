"""The messages between a mutation run and its worker, a line of JSON each."""

from __future__ import annotations

import msgspec

from harness.store.mutate.faults import MutationFault
from harness.store.prove.values import SideOutcome, SideResult
from harness.workers.messages import StartFailure

PASSING_OUTCOMES = (SideOutcome.PASSED, SideOutcome.NA, SideOutcome.SKIPPED)


class GuardRequest(msgspec.Struct):
    """A guard to run, and its time limit."""

    guard_number: int  # in the worker
    seconds: float


class FaultAttemptRequest(msgspec.Struct, tag=True):
    """Run these guards in one fork, with a fault in, until one fails."""

    serial: int
    guards: list[GuardRequest]
    memory_bytes: int
    fault: MutationFault | None = None  # none: the guards run on the unchanged release
    trace: bool = False  # record the lines that they run
    example_factor: int = 1  # of the number of examples
    keep_shrinking: bool = False  # until no smaller counterexample is found


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
    """One guard that ended."""

    guard_number: int
    side: SideResult
    reach: int = 0  # how often the code of the fault ran meanwhile
    conflict: str = ""  # why it did not run: its own toggles change the code of the fault


class GuardTrace(msgspec.Struct):
    """The lines that a guard ran without a fault."""

    lines: dict[str, list[int]]  # of SGLang's modules
    imported: list[str]  # modules of SGLang that it was the first to import


class FaultAttemptReport(msgspec.Struct, tag=True):
    """The results of an attempt: one for each guard that ended, and how the fork ended."""

    serial: int
    results: list[GuardResult]
    fork_side: SideResult
    reach: int = 0  # how often the code of the fault ran
    not_live_reason: str = ""  # why the fault cannot be applied to a living process
    trace: GuardTrace | None = None


MutationWorkerMessage = MutationWorkerReady | FaultAttemptReport | StartFailure
