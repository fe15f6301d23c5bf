"""The execution of `unfix mutate`: lists faults, runs them, or writes one as a toggle."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from pathlib import Path

import msgspec

from harness.cli import guard_runs, options, resumption, run_output
from harness.cli.commands import KINDS
from harness.cli.mutate.progress import MutateProgress
from harness.cli.process_cleanup import end_processes_on_exit
from harness.core import machine, paths
from harness.core.errors import UnfixError
from harness.fixes.registry import toggle_writer
from harness.fixes.registry.toggle_catalogue import ToggleCatalogue, load_catalogue
from harness.releases import managed_releases, source_trees
from harness.runs.mutate import (
    equivalent_faults,
    fault_outcomes,
    fault_selection,
    fault_toggles,
    target_selection,
)
from harness.runs.mutate.fault_selection import MutationDiff
from harness.runs.mutate.line_coverage import CoverageRecord
from harness.runs.mutate.request import RESUMED_SETTINGS, MutateRequest, MutationPlan
from harness.runs.mutate.runner import MutationRunner
from harness.store.database import Store
from harness.store.mutate.faults import GeneratedFaults
from harness.store.mutate.table import MutationTable
from harness.store.mutate.values import MutationRun
from harness.workers.release_target import ReleaseTarget


@dataclasses.dataclass(frozen=True)
class FaultSource:
    """A request, with the release and the diff of its faults."""

    request: MutateRequest
    target: ReleaseTarget
    catalogue: ToggleCatalogue
    diff: MutationDiff | None

    def make_faults(self, coverage: CoverageRecord | None = None) -> GeneratedFaults:
        return fault_selection.make_faults(
            self.request, self.target.sources, self.catalogue, self.diff, coverage
        )


def _prepare_source(request: MutateRequest) -> FaultSource:
    target = _choose_target(request)
    catalogue = load_catalogue(request.toggles)
    words = target_selection.describe_words(request.targets, target.sources, catalogue)
    options.report_meanings(words)
    guard_runs.report_suites(request.suite)
    diff = fault_selection.read_diff(request, target.sources, catalogue, options.report_status)
    return FaultSource(request, target, catalogue, diff)


def _make_faults_now(request: MutateRequest) -> tuple[FaultSource, GeneratedFaults]:
    """Make the faults of a request without any run, for a list or a toggle."""
    source = _prepare_source(request)
    if source.diff is not None and source.diff.is_wide:
        raise UnfixError(
            f"{request.diff} changed {len(source.diff.lines)} modules: name a TARGET. Without one, "
            "faults are made in the lines that guards run, and only a run finds those"
        )
    return source, source.make_faults()


def list_faults(request: MutateRequest, as_json: bool) -> int:
    """Print the faults with their diffs, without any run."""
    source, generated = _make_faults_now(request)
    faults = fault_selection.choose_faults(request, generated)
    if as_json:
        dropped = msgspec.to_builtins(generated.dropped)
        options.print_json({"faults": msgspec.to_builtins(faults), "dropped": dropped})
        return 0 if faults else 1
    from reports.mutate import terminal

    console = options.make_console()
    for fault in faults:
        module = source.target.sources.read(fault.module)
        assert module is not None
        terminal.print_fault(fault, fault_outcomes.format_fault_diff(fault, module.text), console)
    console.print(
        f"{len(faults)} of {len(generated.faults)} faults; dropped, as they do not compile or "
        f"change nothing: {len(generated.dropped)}"
    )
    return 0 if faults else 1


def keep_fault(request: MutateRequest, fault_id: str, slug: str, as_json: bool) -> int:
    """Write a fault as a toggle file, under toggles/ or in the folder that the call gives."""
    if slug:
        toggle_writer.check_id(slug)
    source, generated = _make_faults_now(request)
    fault = fault_selection.find_fault(fault_id, generated.faults)
    toggle = fault_toggles.build_toggle(fault, source.target.sources, source.target.name)
    if slug:
        toggle = msgspec.structs.replace(toggle, id=slug)
    folder = request.toggles[-1] if request.toggles else paths.toggles_folder()
    file = toggle_writer.write_toggle_file(toggle, folder, source.catalogue)
    if as_json:
        options.print_json({"kept": str(file), "toggle": toggle.id})
        return 0
    console = options.make_console()
    console.print(
        f'{file}: write a guard for it, @pytest.mark.guards("{toggle.id}"), '
        f"then `unfix prove {toggle.id}`"
    )
    module = source.target.sources.read(fault.module)
    assert module is not None
    console.print(fault_outcomes.format_fault_diff(fault, module.text))
    return 0


def run_mutate(request: MutateRequest, resumed_run: str | None, outputs: argparse.Namespace) -> int:
    """Run the faults of a request, or the rest of a stopped run."""
    store = Store()
    earlier = None
    if resumed_run is not None:
        stopped = resumption.find_stopped_run(
            MutationTable(store).list_runs(), resumed_run, "mutation run"
        )
        earlier = MutationTable(store).load_whole(stopped)
        request = _restore_request(request, earlier)
    source = _prepare_source(request)
    diff, sources = source.diff, source.target.sources
    if earlier is not None:
        _check_unchanged(earlier, request, source.target)
    is_wide = diff is not None and diff.is_wide
    generated = GeneratedFaults((), ()) if is_wide else source.make_faults()
    mutation = earlier or make_run(request, source.target)
    mutation.at_least, mutation.left_out = request.at_least, []
    mutation.recorded_problems = fault_selection.describe_stale_equivalents(request, generated)
    if diff is not None:
        mutation.settings["between"] = diff.ends
        mutation.recorded_problems += diff.problems
    plan = make_plan(request, source.target)

    def plan_faults(generated: GeneratedFaults) -> MutationPlan:
        """Add the faults to the plan, and their numbers to the stored run."""
        chosen = fault_selection.choose_faults(request, generated)
        mutation.fault_count, mutation.planned = len(generated.faults), len(chosen)
        mutation.ids = [fault.id for fault in chosen]
        mutation.dropped = list(generated.dropped)
        mutation.codes = fault_selection.collect_codes(chosen, sources)
        families = fault_selection.find_families(chosen, sources, source.catalogue)
        suites = fault_selection.find_suites(
            set(families.values()), source.catalogue, paths.project_folder() / "suites"
        )
        return dataclasses.replace(plan, faults=chosen, families=families, suites=suites)

    def plan_from_coverage(coverage: CoverageRecord) -> MutationPlan:
        assert diff is not None
        late_plan = plan_faults(source.make_faults(coverage))
        mutation.elsewhere = fault_selection.describe_unreached_changes(diff, sources, coverage)
        return late_plan

    planned = (plan, plan_from_coverage) if is_wide else (plan_faults(generated), None)
    with (
        contextlib.suppress(KeyboardInterrupt),
        end_processes_on_exit(),
        MutateProgress(mutation) as progress,
    ):
        MutationRunner(planned[0], mutation, MutationTable(store), progress, planned[1]).execute()
    hint = "what is done is kept: `unfix mutate --resume` goes on"
    return run_output.finish_run(KINDS["mutate"], mutation, outputs, hint)


def _restore_request(request: MutateRequest, earlier: MutationRun) -> MutateRequest:
    """Return the request of a stopped run, with the number of jobs of this call."""
    words = {name: earlier.settings[name] for name in RESUMED_SETTINGS}
    # A branch may have moved, so the run uses the original commits of the range.
    words["diff"] = earlier.settings.get("between") or words["diff"]
    folders = [Path(folder) for folder in earlier.settings["toggles"]]
    return dataclasses.replace(request, **words, toggles=folders)


def _check_unchanged(earlier: MutationRun, request: MutateRequest, target: ReleaseTarget) -> None:
    for before, now, subject in (
        (earlier.settings["code"], _digest_code(request), "guards or toggles"),
        (
            earlier.settings.get("sources"),
            source_trees.digest_sources(target.sources),
            f"the sources of SGLang {target.name}",
        ),
    ):
        resumption.refuse_if_changed(before, now, earlier.id, subject)


def _choose_target(request: MutateRequest) -> ReleaseTarget:
    """Choose one release with an environment; for a diff the later end, if it is a release."""
    names = ["current", *(release.name for release in managed_releases.list_known_releases())]
    word = request.release
    if word is None and ".." in request.diff:
        later = request.diff.rpartition("..")[2].lstrip(".")
        word = later if later in names else None
    if word is not None and word not in names and not managed_releases.is_path(word):
        raise UnfixError(
            f"--release names one release that can be run, and not '{word}': "
            f"there are {', '.join(names[1:])}, 'current', and a checkout (~/sglang)"
        )
    words = [] if word is None else [word]
    return guard_runs.prepare_targets(
        words, request.device, only_ready=True, toggle_folders=request.toggles
    )[0]


def make_plan(request: MutateRequest, target: ReleaseTarget) -> MutationPlan:
    """Make the plan without its faults."""
    jobs = guard_runs.choose_job_count(target.device, request.jobs)
    pytest_arguments, folder = guard_runs.resolve_suites(request.suite)
    equivalents = equivalent_faults.read_equivalent_faults()
    return MutationPlan(
        target=target,
        faults=(),
        families={},
        equivalents={fault.id: fault.because for fault in equivalents.values()},
        run_equivalents=request.equal or bool(request.fault),
        pytest_arguments=pytest_arguments,
        working_folder=folder,
        jobs=jobs,
        memory_bytes=guard_runs.choose_memory_limit(jobs, request.memory),
        profile=request.profile,
        example_factor=request.examples,
        keep_shrinking=bool(request.fault),
        toggle_folders=request.toggles,
    )


def _digest_code(request: MutateRequest) -> str:
    """Compute a digest of guards and toggles, the project's own guards included."""
    arguments, _ = guard_runs.resolve_suites(request.suite)
    files = [Path(argument.partition("::")[0]) for argument in arguments]
    other_files = [file for file in files if file.is_absolute()]
    return guard_runs.digest_guards_and_toggles(request.toggles, other_files)


def make_run(request: MutateRequest, target: ReleaseTarget) -> MutationRun:
    run_id, started = guard_runs.make_id_and_start()
    return MutationRun(
        id=run_id,
        started=started,
        release=target.name,
        command=run_output.get_recorded_command(),
        settings={
            **{name: getattr(request, name) for name in RESUMED_SETTINGS},
            "release": target.requested_as or target.name,
            "code": _digest_code(request),
            "sources": source_trees.digest_sources(target.sources),
            "commit": machine.describe_commit(),
            "toggles": [str(folder) for folder in request.toggles],
        },
    )
