"""A review in progress: what its parts share."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from harness.cli import guard_runs, options
from harness.cli.mutate import execution as mutate_execution
from harness.cli.mutate.progress import MutateProgress
from harness.cli.process_cleanup import end_processes_on_exit
from harness.cli.prove.guard_needs import find_guard_files, find_own_devices
from harness.core import paths
from harness.core.device import VIRTUAL
from harness.core.outcomes import Outcome
from harness.core.wording import format_count
from harness.fixes.registry.toggle_catalogue import ToggleCatalogue
from harness.releases import cuda_toolkit
from harness.runs.mutate import coverage_recorder
from harness.runs.mutate.line_coverage import GuardCoverage
from harness.runs.mutate.request import MutateRequest, MutationPlan
from harness.runs.pr import (
    changed_functions,
    changed_guards,
    changed_kernels,
    launch_recording,
    line_runs,
    source_change,
    touched_items,
)
from harness.runs.pr.changed_kernels import ChangedKernel
from harness.runs.pr.line_runs import LineRuns
from harness.runs.pr.request import PrRequest
from harness.runs.pr.source_change import LinesByModule, SourceChange
from harness.runs.pr.touched_items import MAX_NAMED, ItemKind
from harness.store.database import Store
from harness.store.mutate.values import MutationRun
from harness.store.pr.part_results import get_test_name
from harness.store.pr.values import PrPart, PrRun
from harness.workers.release_target import ReleaseTarget

GUARD = ItemKind("guard", "./unfix prove {names} --release {base},{head}", "", "", ends=2)
GUARDS_SHARE = 0.5  # of the budget that is left


@dataclass(frozen=True)
class LaunchCapture:
    """The guards that launch changed kernels, and the folder that their launches are copied to."""

    plan: MutationPlan
    guards: list[str]
    folder: Path
    is_done: bool  # the guards of this plan have run


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
        items = [*run.touched_guards, *run.architectures, *run.deployments]
        line_runs.note_left_out(run.functions, items)
        line_runs.note_evidence(run)

    @cached_property
    def traced_old_lines(self) -> LinesByModule:
        ran = {module for coverage in self.coverages for module in coverage.lines}
        return source_change.find_traced_lines(self.change.base, self.change.old_lines, ran)

    @cached_property
    def guards(self) -> list[str]:
        """The guards to run: those that run a line that the change alters, as the budget allows."""
        skipped = (Outcome.SKIPPED, Outcome.NA)
        touched = changed_guards.list_touched_guards(
            [one for one in self.coverages if one.outcome not in skipped],
            self.change.base,
            self.traced_old_lines,
        )
        for one in touched:
            self.run.reaching[one.name] = max(one.hits, self.run.reaching.get(one.name, 0))
        features = touched_items.find_changed_features(self.change)
        names = {one.name: one.name for one in touched}
        self.run.touched_guards = touched_items.sort_touched(touched, features, names)
        lanes = guard_runs.choose_job_count("cpu", self.request.jobs)
        seconds = self.seconds_left * GUARDS_SHARE
        touched_items.leave_out(self.run.touched_guards, GUARD, None, seconds, lanes)
        left_out = [one for one in self.run.touched_guards if one.left_out]
        if left_out:
            names_left = ", ".join(one.name.rpartition("::")[2] for one in left_out[:MAX_NAMED])
            self.note(
                f"{format_count(len(left_out), 'guard')} that run changed lines were not run, such "
                f"as {names_left} ({left_out[0].left_out})"
            )
        return sorted(one.name for one in self.run.touched_guards if not one.left_out)

    @cached_property
    def provable_guards(self) -> list[str]:
        """The guards to prove: those whose toggles are of a changed file.

        The others run as they are, and so do those of the virtual GPU, whose proofs take too long.
        """
        changed = {*self.change.modules}
        toggles = [
            toggle
            for toggle in self.catalogue
            if any(code.module in changed for each in toggle.variants for code in each.targets)
        ]
        devices, root = find_own_devices(), paths.project_folder()
        files = {str(file.relative_to(root)) for file in find_guard_files([], toggles)}
        return [
            guard
            for guard in self.guards
            if get_device(guard, devices) == "cpu" and guard.partition("::")[0] in files
        ]

    @cached_property
    def listed_kernels(self) -> list[ChangedKernel]:
        with self.count_as_base():  # the kernels of the head are read once, too
            return changed_kernels.list_changed_kernels(self.change)

    @cached_property
    def capture(self) -> LaunchCapture | None:
        """Where launches of the changed kernels are copied to; None if no kernel changed."""
        listed = self.listed_kernels
        earlier = {kernel.earlier: kernel.earlier_lines for kernel in listed if kernel.earlier}
        if not earlier or PrPart.KERNELS not in self.request.parts:
            return None
        devices = find_own_devices()
        on_cpu = [one for one in self.coverages if get_device(one.guard, devices) == "cpu"]
        guards = launch_recording.choose_launching_guards(earlier, on_cpu)
        suites = list(dict.fromkeys(map(get_test_name, guards)))
        request = make_mutate_request(self.request, self.base, suites)
        plan = mutate_execution.make_plan(request, self.base)
        key = changed_kernels.compute_capture_key(plan, earlier, guards)
        return LaunchCapture(plan, guards, *changed_kernels.prepare_capture(key, earlier))

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
    """Return the lines that each guard runs on a release; those on disk are not run again.

    Each guard runs on its own device: lifecycles and deployments on the virtual GPU.
    """
    devices = find_own_devices()
    found = []
    for device, words in group_by_device(suites, devices).items():
        on_device = replace(target, device=device)
        # A lifecycle is a server and its programs: 10 of these are as long as 40 of another guard.
        has_few = device == VIRTUAL and request.profile == "default"
        asked = replace(request, profile="smoke") if has_few else request
        plan = mutate_execution.make_plan(make_mutate_request(asked, on_device, words), on_device)
        with end_processes_on_exit(), MutateProgress(MutationRun("", "", target.name)) as progress:
            coverages = coverage_recorder.record_release_coverage(
                plan, progress, options.report_status, repeats_failures
            )
        found += [one for one in coverages if get_device(one.guard, devices) == device]
    return found


def get_device(guard: str, devices: dict[str, str]) -> str:
    """Return the device that a guard runs on, by the files with a device of their own."""
    return devices.get(guard.partition("::")[0], "cpu")


def group_by_device(guards: Iterable[str], devices: dict[str, str]) -> dict[str, list[str]]:
    """Group guards by their device; without any, name the files of each, and none for the CPU."""
    grouped = defaultdict[str, list[str]](list)
    for guard in guards:
        grouped[get_device(guard, devices)].append(guard)
    if grouped:
        return dict(grouped)
    for file, device in devices.items():
        grouped[device].append(file)
    return {"cpu": [], **grouped}


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
        device=target.device,
        profile=request.profile,
        memory=request.memory,
        suite=suites,
        examples=1,
        equal=False,
        jobs=request.jobs,
        toggles=request.toggles,
    )
