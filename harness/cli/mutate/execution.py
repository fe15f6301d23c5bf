"""What `unfix mutate` asks for, and what comes of it: a list, a run, a toggle."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from harness.cli import guard_runs, options, resumption, run_kinds, run_output
from harness.cli.mutate import fault_selection
from harness.cli.mutate.progress import MutateProgress
from harness.cli.process_cleanup import end_processes_on_exit
from harness.core import machine, paths
from harness.core.errors import UnfixError
from harness.core.source_scopes import ReleaseSources
from harness.fixes.registry import toggle_writer
from harness.fixes.registry.toggle_catalogue import ToggleCatalogue
from harness.releases import managed_releases
from harness.runs.mutate import equivalent_faults, fault_outcomes, fault_toggles, line_coverage
from harness.runs.mutate.line_coverage import CoverageRecord
from harness.runs.mutate.runner import MutationRunner
from harness.runs.mutate.scheduler import MutationRequest
from harness.store.database import Store
from harness.store.mutate.faults import GeneratedFaults, MutationFault
from harness.store.mutate.values import MutationRun
from harness.workers.release_target import ReleaseTarget

RESUMED_SETTINGS = (
    *("targets", "release", "diff", "operators", "fault", "limit", "seed", "at_least"),
    *("device", "profile", "memory", "suite", "examples", "equal"),
)
MAX_MEMORY_GIB = 2**33  # GiB that a limit can be


def run_mutate(arguments: argparse.Namespace) -> int:
    _check_arguments(arguments)
    store = Store()
    earlier = _find_earlier_run(arguments, store) if arguments.resume is not None else None
    catalogue = options.load_catalogue(arguments)
    target = _choose_target(arguments)
    if earlier is not None:
        _check_unchanged(earlier, arguments, target)
    changed = fault_selection.make_diff(arguments, target.sources, catalogue)
    later = changed is not None and changed.is_wide
    if later and (arguments.keep or arguments.list):
        raise UnfixError(
            f"{arguments.diff} changed {len(changed.lines)} modules: name a TARGET. Without one, "  # type: ignore[union-attr]
            "faults are made where a guard runs, which a run alone finds out"
        )
    made = GeneratedFaults((), ())
    if not later:
        made = fault_selection.make_faults(arguments, target.sources, catalogue, changed)
    if arguments.keep:
        return _keep_fault(arguments, made, target, catalogue)
    if arguments.list:
        chosen = fault_selection.choose_faults(arguments, made)
        _print_faults(chosen, made, target.sources, arguments.json)
        return 0 if chosen else 1
    mutation = earlier or _make_run(arguments, target)
    if changed is not None:
        mutation.settings["between"] = changed.ends
    mutation.at_least, mutation.left_out = arguments.at_least, []
    mutation.recorded_problems = fault_selection.describe_stale_equals(arguments, made)
    if changed is not None:
        mutation.recorded_problems += changed.problems
    asked = _make_request(arguments, target)

    def planned(made: GeneratedFaults) -> MutationRequest:
        """What is run, and the run told how much that is."""
        chosen = fault_selection.choose_faults(arguments, made)
        mutation.made, mutation.planned = len(made.faults), len(chosen)
        mutation.ids = [fault.id for fault in chosen]
        mutation.dropped = list(made.dropped)
        mutation.codes = fault_selection.collect_codes(chosen, target.sources)
        families = fault_selection.find_families(chosen, target.sources, catalogue)
        return dataclasses.replace(asked, faults=chosen, families=families)

    def made_later(reaches: CoverageRecord) -> MutationRequest:
        assert changed is not None
        found = planned(
            fault_selection.make_faults(arguments, target.sources, catalogue, changed, reaches)
        )
        mutation.elsewhere = fault_selection.describe_unreached_changes(
            changed, target.sources, reaches
        )
        return found

    if later:
        stopped = _run_until_stopped(asked, mutation, store, made_later)
    else:
        stopped = _run_until_stopped(planned(made), mutation, store)
    code = run_output.write_and_print_run(run_kinds.MUTATE, mutation, arguments)
    if stopped:
        options.report_status("stopped; what is done is kept: `unfix mutate --resume` goes on")
        return 130
    return code


def _check_arguments(arguments: argparse.Namespace) -> None:
    if arguments.words:
        raise UnfixError("`unfix mutate` takes nothing behind `--`: --suite names guards")
    if arguments.slug and not arguments.keep:
        raise UnfixError("--as names the toggle that --keep makes")
    if arguments.slug:
        toggle_writer.check_id(arguments.slug)
    if arguments.limit is not None and arguments.limit < 1:
        raise UnfixError("--limit is a number of faults")
    if arguments.jobs is not None and arguments.jobs < 1:
        raise UnfixError(f"-j is how many faults at a time, and not {arguments.jobs}")
    if arguments.memory is not None and not 1 <= arguments.memory * 2**30 < MAX_MEMORY_GIB * 2**30:
        raise UnfixError(f"--memory is a positive number of GiB, and not {arguments.memory}")
    if arguments.examples < 1:
        raise UnfixError(f"--examples is how many times as many, and not {arguments.examples}")
    if arguments.at_least is not None and not 0 < arguments.at_least <= 100:
        raise UnfixError("--at-least is percent: more than 0, and 100 at most")
    arguments.toggles = [folder.resolve() for folder in arguments.toggles]


def _find_earlier_run(arguments: argparse.Namespace, store: Store) -> MutationRun:
    """The run that this one goes on with, asked as it was."""
    run = resumption.find_stopped_run(store.mutate.list_runs(), arguments.resume, "mutation run")
    found = store.mutate.load_whole(run)
    for setting in RESUMED_SETTINGS:
        setattr(arguments, setting, found.settings[setting])
    # A branch may stand elsewhere by now: what it was then is what the run is about.
    arguments.diff = found.settings.get("between") or arguments.diff
    arguments.toggles = [Path(folder) for folder in found.settings["toggles"]]
    return found


def _check_unchanged(
    earlier: MutationRun, arguments: argparse.Namespace, target: ReleaseTarget
) -> None:
    for before, now, what in (
        (earlier.settings["code"], _digest_code(arguments), "guards or toggles"),
        (
            earlier.settings.get("sources"),
            line_coverage.digest_release_sources(target.sources),
            f"the sources of SGLang {target.name}",
        ),
    ):
        resumption.refuse_if_changed(before, now, earlier.id, what)


def _choose_target(arguments: argparse.Namespace) -> ReleaseTarget:
    """One release, with an environment: the later one of a diff, if there is one."""
    names = ["current", *(release.name for release in managed_releases.list_releases())]
    word = arguments.release
    if word is None and ".." in arguments.diff:
        later = arguments.diff.rpartition("..")[2].lstrip(".")
        word = later if later in names else None
    if word is not None and word not in names:
        raise UnfixError(
            f"--release names one release that can be run, and not '{word}': "
            f"there are {', '.join(names[1:])}, and 'current'"
        )
    return guard_runs.prepare_targets(
        [word] if word is not None else [], arguments.device, only_ready=True
    )[0]


# Running


def _make_request(arguments: argparse.Namespace, target: ReleaseTarget) -> MutationRequest:
    """All but the faults."""
    jobs = guard_runs.choose_job_count(target.device, arguments.jobs)
    words, place = guard_runs.resolve_suites(arguments.suite)
    return MutationRequest(
        target=target,
        faults=(),
        families={},
        equivalents={
            one.id: one.because for one in equivalent_faults.read_equivalent_faults().values()
        },
        run_equivalents=arguments.equal or bool(arguments.fault),
        pytest_arguments=words,
        working_folder=place,
        jobs=jobs,
        memory_bytes=guard_runs.choose_memory_limit(jobs, arguments.memory),
        profile=arguments.profile,
        example_factor=arguments.examples,
        keep_shrinking=bool(arguments.fault),
        toggle_folders=arguments.toggles,
    )


def _list_guard_files(words: list[str]) -> list[Path]:
    """Files of guards, so that a change of theirs is noticed; ours are looked at anyway."""
    files = [Path(word.partition("::")[0]) for word in words]
    return [file for file in files if file.is_absolute()]


def _digest_code(arguments: argparse.Namespace) -> str:
    return guard_runs.digest_guards_and_toggles(
        arguments.toggles, _list_guard_files(guard_runs.resolve_suites(arguments.suite)[0])
    )


def _make_run(arguments: argparse.Namespace, target: ReleaseTarget) -> MutationRun:
    run_id, started = guard_runs.make_id_and_start()
    settings: dict[str, Any] = {name: getattr(arguments, name) for name in RESUMED_SETTINGS}
    settings["release"] = target.requested_as or target.name
    settings["code"] = _digest_code(arguments)
    settings["sources"] = line_coverage.digest_release_sources(target.sources)
    settings["commit"] = machine.describe_commit()
    settings["toggles"] = [str(folder) for folder in arguments.toggles]
    return MutationRun(
        id=run_id,
        started=started,
        release=target.name,
        command=run_output.get_recorded_command(),
        settings=settings,
    )


def _run_until_stopped(
    request: MutationRequest,
    mutation: MutationRun,
    store: Store,
    make_late_request: Callable[[CoverageRecord], MutationRequest] | None = None,
) -> bool:
    """Run it; gives whether somebody stopped it."""
    try:
        with end_processes_on_exit(), MutateProgress(mutation) as progress:
            MutationRunner(request, mutation, store.mutate, progress, make_late_request).execute()
    except KeyboardInterrupt:
        return True
    return False


# Listing and keeping


def _print_faults(
    faults: Sequence[MutationFault],
    generated: GeneratedFaults,
    sources: ReleaseSources,
    as_json: bool,
) -> None:
    """The faults with their diffs, and nothing run."""
    if as_json:
        listed = msgspec.to_builtins(faults)
        options.print_json({"faults": listed, "dropped": msgspec.to_builtins(generated.dropped)})
        return
    from reports.mutate import terminal

    console = options.make_console()
    for fault in faults:
        source = sources.read(fault.module)
        assert source is not None
        terminal.print_fault(fault, fault_outcomes.format_fault_diff(fault, source.text), console)
    console.print(
        f"{len(faults)} of {len(generated.faults)} faults; {len(generated.dropped)} more were dropped: "
        "they do not compile, or are the same code"
    )


def _keep_fault(
    arguments: argparse.Namespace,
    generated: GeneratedFaults,
    target: ReleaseTarget,
    catalogue: ToggleCatalogue,
) -> int:
    """A fault as a file under toggles/."""
    fault = fault_selection.find_fault(arguments.keep, generated.faults)
    toggle = fault_toggles.build_toggle(fault, target.sources, target.name)
    if arguments.slug:
        toggle = msgspec.structs.replace(toggle, id=arguments.slug)
    file = toggle_writer.write_toggle_file(toggle, paths.toggles_folder(), catalogue)
    if arguments.json:
        options.print_json({"kept": str(file), "toggle": toggle.id})
        return 0
    options.make_console().print(
        f'{file}: write a guard for it, @pytest.mark.guards("{toggle.id}"), '
        f"then `unfix prove {toggle.id}`"
    )
    text = target.sources.read(fault.module).text  # type: ignore[union-attr]
    options.make_console().print(fault_outcomes.format_fault_diff(fault, text))
    return 0
