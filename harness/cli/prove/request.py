"""The request from a call of `prove` or `lifecycle`.

`--resume` and `--failed` name an earlier run: each setting that the call leaves at its default is
taken from that run.
"""

from __future__ import annotations

import dataclasses
import secrets
import shutil
from pathlib import Path

from harness.cli import guard_runs, options, resumption
from harness.cli.prove import guard_needs
from harness.cli.prove.call import RESUMED_SETTINGS, ProveCall
from harness.core.errors import UnfixError
from harness.core.outcomes import RunStatus
from harness.fixes.registry import toggle_catalogue
from harness.fixes.registry.schema import Toggle
from harness.fixes.registry.toggle_catalogue import ToggleCatalogue
from harness.guards import proof_exceptions
from harness.releases import source_trees
from harness.runs.kernels import module_builds
from harness.runs.prove import plan
from harness.runs.prove.plan import ProveRequest
from harness.store.database import Store
from harness.store.prove.table import ProveTable
from harness.store.prove.values import ProveRun
from harness.workers.release_target import ReleaseTarget


def resolve_call(call: ProveCall, store: Store) -> tuple[ProveCall, ProveRun | None]:
    """Resolve the call's paths and the settings of its earlier run; return call and run."""
    catalogue = toggle_catalogue.load_catalogue(call.toggles)
    names, guards = options.split_names_and_paths(call.names, call.usage, catalogue)
    device = call.device
    if device == "auto":
        device = "cuda" if shutil.which("nvidia-smi") else "cpu"
    words = resolve_guard_paths([*guards, *call.words])
    call = dataclasses.replace(call, names=names, words=words, device=device)
    earlier = _find_earlier_run(call, store)
    return (call if earlier is None else _restore_settings(call, earlier)), earlier


def resolve_guard_paths(words: list[str]) -> list[str]:
    """Make guards' paths absolute, since the workers have a working folder of their own."""
    resolved = []
    for index, word in enumerate(words):
        file, colons, node = word.partition("::")
        is_path = plan.is_guard_path(words, index)
        resolved.append(f"{Path(file).resolve()}{colons}{node}" if is_path else word)
    return resolved


def _find_earlier_run(call: ProveCall, store: Store) -> ProveRun | None:
    """Find the run that this one resumes or repeats in part."""
    if call.resume is not None and call.failed is not None:
        raise UnfixError("--resume continues a run, --failed starts a new one: give one of them")
    if call.resume is not None:
        runs = [
            run for run in ProveTable(store).list_runs() if call.resume or run.kind == call.command
        ]
        earlier = ProveTable(store).load_whole(
            resumption.find_stopped_run(runs, call.resume, "run")
        )
    elif call.failed is not None:
        earlier = ProveTable(store).get(
            call.failed or ProveTable(store).find_latest(call.command).id
        )
        if earlier.status is RunStatus.RUNNING:
            raise UnfixError(f"run {earlier.id} is still running")
    else:
        return None
    if earlier.kind != call.command:
        raise UnfixError(f"run {earlier.id} is one of `unfix {earlier.kind}`")
    return earlier


def _restore_settings(call: ProveCall, earlier: ProveRun) -> ProveCall:
    defaults = ProveCall(call.command, call.usage)
    restored = {
        name: earlier.settings[name]
        for name in RESUMED_SETTINGS
        if name in earlier.settings
        and (name != "seed" or call.resume is not None)  # a second run draws anew
        and getattr(call, name) == getattr(defaults, name)
    }
    toggles = call.toggles or [Path(folder) for folder in earlier.settings["toggles"]]
    call = dataclasses.replace(call, **restored, toggles=toggles)
    if call.resume is not None:
        resumption.refuse_if_changed(
            earlier.settings["code"], digest_inputs(call), earlier.id, "guards or toggles"
        )
    return call


def digest_sources(targets: list[ReleaseTarget]) -> dict[str, str]:
    """Digest the sources of each release: an installed SGLang can be edited under its version."""
    return {target.name: source_trees.digest_sources(target.sources) for target in targets}


def digest_inputs(call: ProveCall) -> str:
    guards = [
        Path(word.partition("::")[0])
        for index, word in enumerate(call.words)
        if plan.is_guard_path(call.words, index)
    ]
    return guard_runs.digest_guards_and_toggles(call.toggles, guards)


def _select_toggles(catalogue: ToggleCatalogue, call: ProveCall) -> list[Toggle]:
    if call.proposed and not call.names:
        return list(catalogue.proposed.values())
    return options.select_toggles_or_all(catalogue, call.names, call.usage)


def make_request(
    call: ProveCall,
    earlier: ProveRun | None,
    store: Store,
    targets: list[ReleaseTarget] | None = None,
) -> ProveRequest:
    """Make the request of a call, on targets that are prepared already or on those it names."""
    # A wrong word ends the call before a release is installed for it.
    _select_toggles(toggle_catalogue.load_catalogue(call.toggles), call)
    guard_runs.check_positive(call.limit, "--limit")
    try:
        shard = plan.parse_shard(call.shard)
    except ValueError as error:
        raise UnfixError(str(error)) from error
    if targets is None:
        folders = call.toggles
        targets = guard_runs.prepare_targets(call.release, call.device, toggle_folders=folders)
    if earlier is not None and call.resume is not None:
        sources = earlier.settings.get("sources", {})
        for name, digest in digest_sources(targets).items():
            subject = f"the sources of SGLang {name}"
            resumption.refuse_if_changed(sources.get(name), digest, earlier.id, subject)
    catalogue = toggle_catalogue.load_catalogue(call.toggles)  # again: some may be mended now
    toggles = _select_toggles(catalogue, call)
    places = guard_needs.find_guard_places(toggles, catalogue)
    jobs = guard_runs.choose_job_count(call.device, call.jobs)
    memory = guard_runs.choose_memory_limit(jobs, call.memory)
    if earlier is not None and call.failed is not None and earlier.green:
        raise UnfixError(f"run {earlier.id} left nothing to prove")
    cells = earlier.cells if earlier is not None else []
    files = guard_needs.find_guard_files(call.words, toggles, places)
    if call.command == "prove" and call.device != "cuda":
        guard_needs.bring_toolkit(files, toggles, targets)
    device, elsewhere = call.device, dict[str, list[Path]]()
    if call.command == "prove" and call.device == "cpu":
        elsewhere = guard_needs.group_by_device(files)
    for name, own in elsewhere.items():
        if call.words and len(own) == len(files):  # the paths hold no other guards
            device, elsewhere = name, {}
            break
    return ProveRequest(
        kind=call.command,
        targets=targets,
        toggles=toggles,
        has_named_toggles=bool(call.names) or call.proposed,
        device=device,
        jobs=jobs,
        side_timeout=call.limit,
        memory_limit=memory,
        profile=call.profile,
        pytest_arguments=[*(["-k", call.k] if call.k else []), *call.words],
        guard_places=places,
        toggle_folders=call.toggles,
        shard=shard,
        seed=secrets.randbits(32) if call.seed is None else call.seed,
        skipped_cells=plan.proven_cell_keys(cells if call.failed is not None else ()),
        finished_cells={cell.key: cell for cell in cells if call.resume is not None},
        known_seconds=ProveTable(store).load_average_seconds(),
        files_by_device=elsewhere,
        start_builds=module_builds.start_builds,
        exceptions=proof_exceptions.load_project_exceptions(catalogue),
    )
