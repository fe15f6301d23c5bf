"""The messages between a mutation run and its worker, a line of JSON each."""

from __future__ import annotations

import msgspec

from harness.core.outcomes import Outcome
from harness.store.mutate.faults import MutationFault
from harness.store.prove.values import RepeatMode, SideResult
from harness.workers.messages import StartFailure

PASSING_OUTCOMES = (Outcome.PASSED, Outcome.NA, Outcome.SKIPPED)
# Ends that the machine may have caused: the guard runs once more, alone.
OUTCOMES_RUN_ALONE = (
    Outcome.HANG,
    Outcome.OUT_OF_MEMORY,
    Outcome.SIGNAL,
    Outcome.LOST,
)


class GuardRequest(msgspec.Struct):
    """A guard to run, and its time limit."""

    guard_number: int  # its number in the worker
    seconds: float


class FaultAttemptRequest(msgspec.Struct, tag=True):
    """A request to run guards in one fork, with a fault, until one fails."""

    serial: int
    guards: list[GuardRequest]
    memory_bytes: int
    fault: MutationFault | None = None  # None: the unchanged release
    trace: bool = False  # whether to record the lines that the guards run
    example_factor: int = 1  # multiplies the number of examples
    repeat_mode: RepeatMode = RepeatMode.WHOLE  # the part of a guard to run
    blob: str = ""  # the example, in that mode
    random_seed: int | None = None  # the seed of the random sources; None: no seeding
    keep_shrinking: bool = False  # until the counterexample is minimal


class ImportModulesRequest(msgspec.Struct, tag=True):
    """A request to import modules now, so that no fork has to."""

    modules: list[str]


MutationWorkerRequest = FaultAttemptRequest | ImportModulesRequest


class MutationWorkerReady(msgspec.Struct, tag=True):
    """A report that a worker is ready: SGLang is imported and the guards are known."""

    guards: list[str]
    seconds: float
    release: str
    versions: dict[str, str]
    problems: list[str] = []


class GuardResult(msgspec.Struct):
    """The result of one guard."""

    guard_number: int
    side: SideResult
    reach: int = 0  # calls of the fault's code meanwhile
    conflict: str = ""  # the reason if its own toggles change the fault's code


class GuardTrace(msgspec.Struct):
    """The lines that a guard ran without a fault."""

    lines: dict[str, list[int]]  # lines of SGLang's modules
    imported: list[str]  # SGLang's modules that this guard imports first


class FaultAttemptReport(msgspec.Struct, tag=True):
    """The results of an attempt: one for each guard that ended, and the end of the fork."""

    serial: int
    results: list[GuardResult]
    fork_side: SideResult
    reach: int = 0  # calls of the fault's code
    not_live_reason: str = ""  # the reason why a living process cannot get the fault
    unreached_reason: str = ""  # the reason why its code did not run, if one is known
    trace: GuardTrace | None = None


MutationWorkerMessage = MutationWorkerReady | FaultAttemptReport | StartFailure
