"""A review in progress: what its parts share."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from harness.cli import options
from harness.cli.mutate import execution as mutate_execution
from harness.cli.mutate.progress import MutateProgress
from harness.cli.process_cleanup import end_processes_on_exit
from harness.fixes.registry.toggle_catalogue import ToggleCatalogue
from harness.releases import cuda_toolkit
from harness.runs.mutate import coverage_recorder
from harness.runs.mutate.line_coverage import GuardCoverage
from harness.runs.mutate.request import MutateRequest
from harness.runs.pr import (
    changed_functions,
    changed_guards,
    changed_kernels,
    line_runs,
    source_change,
)
from harness.runs.pr.changed_kernels import ChangedKernel
from harness.runs.pr.line_runs import LineRuns
from harness.runs.pr.request import PrRequest
from harness.runs.pr.source_change import LinesByModule, SourceChange
from harness.store.database import Store
from harness.store.mutate.values import MutationRun
from harness.store.pr.values import PrRun
from harness.workers.release_target import ReleaseTarget


@dataclass
class Review:
    """A review in progress: both ends, and what one part finds out for the others."""

    request: PrRequest
    run: PrRun
    store: Store
    base: ReleaseTarget
    head: ReleaseTarget
    change: SourceChange
    started: float  # of `time.monotonic`
    catalogue: ToggleCatalogue = field(default_factory=lambda: ToggleCatalogue([]))

    @cached_property
    def coverages(self) -> list[GuardCoverage]:
        """The lines that each guard runs on the base."""
        with self.count_as_base():
            return record_coverage(self.request, self.base)

    @cached_property
    def line_runs(self) -> LineRuns:
        """What ran the lines of the changed modules, as far as the parts have run."""
        return LineRuns()

    def judge_lines(self) -> None:
        """List the changed functions, each with what ran it and what is worse of it."""
        run = self.run
        ran = {module for runs in self.line_runs.everything for module in runs}
        functions = changed_functions.list_changed_functions(self.change, ran)
        line_runs.note_runs(functions, self.line_runs, cuda_toolkit.find_toolkit() is not None)
        run.functions = [function.shown for function in functions]
        run.functions += changed_functions.list_unread_files(self.change)
        line_runs.note_left_out(run.functions, [*run.architectures, *run.deployments])
        line_runs.note_evidence(run)

    @cached_property
    def traced_old_lines(self) -> LinesByModule:
        ran = {module for coverage in self.coverages for module in coverage.lines}
        return source_change.find_traced_lines(self.change.base, self.change.old_lines, ran)

    @cached_property
    def guards(self) -> list[str]:
        """The guards that run a line of the base that the change alters, without parameters."""
        reached = changed_guards.count_reached_lines(self.coverages, self.traced_old_lines)
        for guard, count in reached.items():
            self.run.reaching[guard] = max(count, self.run.reaching.get(guard, 0))
        return sorted(reached)

    @cached_property
    def listed_kernels(self) -> list[ChangedKernel]:
        with self.count_as_base():  # the kernels of the head are read once, too
            return changed_kernels.list_changed_kernels(self.change)

    @property
    def seconds_left(self) -> float:
        """The seconds of the budget that are left; preparing the base and the head is free."""
        spared = sum(self.run.part_seconds.get(name, 0.0) for name in ("prepare", "base"))
        used = time.monotonic() - self.started - spared
        return max(0.0, self.request.budget - used)

    @contextlib.contextmanager
    def count_as_base(self) -> Iterator[None]:
        """Count the time of a block as the base's, which is recorded once and has no budget."""
        begun = time.monotonic()
        try:
            yield
        finally:
            spent = time.monotonic() - begun
            self.run.part_seconds["base"] = self.run.part_seconds.get("base", 0.0) + spent

    def note(self, text: str) -> None:
        self.run.notes.append(text)
        options.report_status(text)


def record_coverage(
    request: PrRequest,
    target: ReleaseTarget,
    suites: Sequence[str] = (),
    repeats_failures: bool = False,
) -> list[GuardCoverage]:
    """Return the lines that each guard runs on a release; those on disk are not run again."""
    mutate_request = make_mutate_request(request, target, list(suites))
    plan = mutate_execution.make_plan(mutate_request, target)
    with end_processes_on_exit(), MutateProgress(MutationRun("", "", target.name)) as progress:
        return coverage_recorder.record_release_coverage(
            plan, progress, options.report_status, repeats_failures
        )


def make_mutate_request(
    request: PrRequest, target: ReleaseTarget, suites: list[str]
) -> MutateRequest:
    return MutateRequest(
        targets=[],
        release=target.name,
        diff="",
        operators="",
        fault=[],
        limit=request.fault_limit or None,
        seed=request.seed,
        at_least=None,
        device="cpu",
        profile=request.profile,
        memory=request.memory,
        suite=suites,
        examples=1,
        equal=False,
        jobs=request.jobs,
        toggles=request.toggles,
    )
