"""A call of `unfix mutate` as typed arguments, and the plan that they resolve to."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from harness.core.errors import UnfixError
from harness.store.mutate.faults import MutationFault
from harness.workers.release_target import ReleaseTarget

MAX_MEMORY_GIB = 2**33  # a limit in bytes is a 64-bit number


@dataclass(frozen=True)
class MutateRequest:
    """One valid call. A stored run has these arguments by these names, so that it can resume."""

    targets: list[str]
    release: str | None
    diff: str
    operators: str
    fault: list[str]  # ids or their prefixes, with commas between
    limit: int | None
    seed: int
    at_least: float | None
    device: str
    profile: str
    memory: float | None  # GiB
    suite: list[str]
    examples: int
    equal: bool
    jobs: int | None
    toggles: list[Path]

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise UnfixError("--limit is a number of faults")
        if self.jobs is not None and self.jobs < 1:
            raise UnfixError(f"-j is the number of faults at a time, not {self.jobs}")
        if self.memory is not None and not 2.0**-30 <= self.memory < MAX_MEMORY_GIB:
            raise UnfixError(f"--memory is a positive number of GiB, not {self.memory}")
        if self.examples < 1:
            raise UnfixError(f"--examples is a positive factor, not {self.examples}")
        if self.at_least is not None and not 0 < self.at_least <= 100:
            raise UnfixError("--at-least is a percentage: more than 0, and 100 at most")


# The arguments that a resumed run takes from its first half; this call decides the others.
RESUMED_SETTINGS = (
    *("targets", "release", "diff", "operators", "fault", "limit", "seed", "at_least"),
    *("device", "profile", "memory", "suite", "examples", "equal"),
)


@dataclass(frozen=True)
class MutationPlan:
    """A resolved call: the release, the faults and the guards of a runner."""

    target: ReleaseTarget
    faults: tuple[MutationFault, ...]
    families: dict[str, str]  # by target
    equivalents: dict[str, str]  # the reasons for recorded equivalents, by id
    run_equivalents: bool  # whether equivalents run as well
    pytest_arguments: list[str]  # with the suites' names
    working_folder: Path  # pytest's working folder
    jobs: int
    memory_bytes: int
    profile: str
    example_factor: int = 10  # for a survivor's second attempt; 1: no second attempt
    keep_shrinking: bool = False
    toggle_folders: list[Path] = field(default_factory=list)
    suites: frozenset[str] = frozenset()  # the names of those with guards of the families
