"""The execution of `unfix bisect`: runs a prepared search over toggles, releases or commits."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from packaging.version import InvalidVersion, Version

from harness.cli import guard_runs, options
from harness.cli.bisect.preparation import PreparedSearch
from harness.cli.bisect.progress import BisectProgress
from harness.cli.process_cleanup import end_processes_on_exit
from harness.core import git_repository, machine, paths
from harness.core.errors import UnfixError
from harness.core.outcomes import RunStatus
from harness.fixes.patch_plan import Direction
from harness.releases import managed_releases
from harness.releases.managed_releases import Release
from harness.runs.bisect import (
    commit_bisection,
    guard_runner,
    release_bisection,
    search_driver,
    toggle_candidates,
)
from harness.runs.bisect.command_runner import CommandRunner
from harness.runs.bisect.request import BisectRequest
from harness.runs.bisect.search_driver import SearchDriver
from harness.runs.bisect.trial_runner import ToggleChoices, TrialJob, TrialRunner, VersionUnderTest
from harness.store.bisect.table import BisectTable
from harness.store.bisect.values import BisectSearch, BisectTrial
from harness.store.database import Store

GUARD_TIME_LIMIT = 300.0  # seconds for a run of a guard, if the caller gives no limit


class ReplayRunner:
    """A runner that takes every answer from the log."""

    def __init__(self, earlier: BisectSearch) -> None:
        self.is_deterministic, self.jobs = earlier.is_deterministic, earlier.jobs
        self.unfit_toggles = {part.where: part.refused for part in earlier.toggle_searches}

    def find_unfit_toggles(
        self, version: VersionUnderTest, choices: ToggleChoices
    ) -> dict[str, str]:
        return self.unfit_toggles.get(version.name, {})

    def run(self, batch: list[TrialJob]) -> Iterator[tuple[int, BisectTrial]]:
        for job in batch:
            names = ", ".join(job.toggles) or "nothing"
            raise UnfixError(f"the log holds no run on {job.version.name} with {names} ({job.why})")
        yield from ()

    def close(self) -> None: ...


def run_search(prepared: PreparedSearch, store: Store) -> None:
    """Run the search to its end, or until Ctrl-C."""
    search, replayed = prepared.search, prepared.replayed
    runner: TrialRunner = ReplayRunner(replayed) if replayed else _make_runner(prepared)
    search.jobs, search.is_deterministic = runner.jobs, runner.is_deterministic
    if not replayed:
        BisectTable(store).begin(search)
    search.status = RunStatus.STOPPED
    started = time.monotonic()
    log = None if replayed else BisectTable(store)
    driver = SearchDriver(search, runner, log, BisectProgress())
    search_kind = {
        "toggles": _search_toggles,
        "releases": _search_releases,
        "commits": _search_commits,
    }
    try:
        with end_processes_on_exit():
            try:
                search_kind[search.kind](prepared, driver)
            finally:
                runner.close()
        search.status = RunStatus.FINISHED
    except KeyboardInterrupt:
        pass
    except UnfixError as error:
        search.status, search.summary = RunStatus.REFUSED, str(error)
        raise
    finally:
        search.seconds += time.monotonic() - started
        if not replayed:
            BisectTable(store).save(search)
    if replayed:
        _check_same_result(search, replayed)


def _make_runner(prepared: PreparedSearch) -> TrialRunner:
    request = prepared.request
    folder = paths.state_folder() / "searches" / prepared.search.id
    toggle_folders = [Path(name) for name in request.toggle_folders]
    node = guard_runner.find_guard_node(request.command) if request.kind != "commits" else None
    jobs = request.jobs or 1
    if node is None:
        return CommandRunner(
            request.command,
            request.rules,
            folder,
            jobs=jobs,
            time_limit=request.time_limit,
            server_command=request.server_command,
            ready_url=request.ready_url,
            toggle_folders=toggle_folders,
        )
    if request.rules.metric or request.server_command:
        raise UnfixError("--metric and --serve go with a command, not with a guard")
    memory = guard_runs.choose_memory_limit(jobs, request.memory_gib)
    return guard_runner.GuardRunner(
        node,
        request.rules,
        folder,
        jobs=jobs,
        time_limit=request.time_limit or GUARD_TIME_LIMIT,
        memory_limit=memory,
        device=request.device,
        profile=request.profile,
        toggle_folders=toggle_folders,
    )


def _search_toggles(prepared: PreparedSearch, driver: SearchDriver) -> None:
    request, search = prepared.request, prepared.search
    version = _prepare_release(request.release, request.device)
    search.machine = machine.collect_machine_facts(str(version.python))
    result = driver.search_toggles(
        version,
        choose_candidates(prepared, version),
        find_all=request.find_all,
        repeat=request.repeat,
        confidence=request.confidence,
    )
    search.verdict = result.verdict
    search.summary = search_driver.summarize_toggle_search(result)


def choose_candidates(
    prepared: PreparedSearch, version: VersionUnderTest
) -> toggle_candidates.ToggleCandidates:
    request = prepared.request
    candidates = toggle_candidates.select_candidates(
        prepared.catalogue.select_or_all(request.candidates),
        Direction.ENABLE if request.enable else Direction.REVERT,
        version.tree,
        prepared.catalogue,
        prepared.search.pinned_toggles,
    )
    if not candidates.universe.toggles:
        verb = "put into" if request.enable else "taken out of"
        reasons = "; ".join(f"{name}: {why}" for name, why in candidates.left_out.items())
        raise UnfixError(f"no toggle can be {verb} SGLang {version.name} ({reasons})")
    return candidates


def _search_releases(prepared: PreparedSearch, driver: SearchDriver) -> None:
    request, search = prepared.request, prepared.search
    versions: dict[str, VersionUnderTest] = {}

    def prepare_version(name: str) -> VersionUnderTest:
        if name not in versions:
            versions[name] = _prepare_release(name, request.device)
        return versions[name]

    bisection = release_bisection.ReleaseBisection(
        driver,
        release_bisection.ReleaseSeries(list_releases_between(request), prepare_version),
        prepared.catalogue.select_or_all(request.candidates),
        prepared.catalogue,
        search.pinned_toggles,
    )
    step = bisection.run(request.good, request.bad, find_all=request.find_all)
    search.machine = machine.collect_machine_facts(str(prepare_version(request.bad).python))
    search.verdict, search.summary = release_bisection.summarize_release_search(
        step, search.toggle_searches
    )


def list_releases_between(request: BisectRequest) -> list[str]:
    """List the releases from one end to the other, the oldest first."""
    named = {request.good, request.bad, *(request.among or ())}
    supported = {release.name for release in managed_releases.list_releases()}
    # A release that somebody added is tried only if the call names it.
    tried = [
        release
        for release in managed_releases.list_known_releases()
        if release.name in named | supported
    ]
    names = [release.name for release in sorted(tried, key=_read_version)]
    ends = [managed_releases.get_release(name).name for name in (request.good, request.bad)]
    first, last = sorted(map(names.index, ends))
    if first == last:
        raise UnfixError(f"--good and --bad are both {request.good}")
    between = names[first : last + 1]
    if request.among is None:
        return between
    chosen = {*ends, *(managed_releases.get_release(name).name for name in request.among)}
    return [name for name in between if name in chosen]


def _read_version(release: Release) -> Version:
    """Return the version of a release; that of a commit stands in its sources alone."""
    try:
        return Version(release.name)
    except InvalidVersion:
        return release.open_sources().version or Version("0")


def _search_commits(prepared: PreparedSearch, driver: SearchDriver) -> None:
    request, search = prepared.request, prepared.search
    base = _prepare_release(request.release)
    search.machine = machine.collect_machine_facts(str(base.python))
    commit_request = commit_bisection.CommitBisectRequest(
        search=request,
        python=str(base.python),
        environment_folder=str(base.environment_folder),
        pinned_toggles=search.pinned_toggles,
        state_folder=str(paths.state_folder() / "searches" / f"{search.id}-commits"),
        replay_only=prepared.replayed is not None,
    )
    repository = git_repository.open_repository(Path(request.repository))
    search.step = commit_bisection.bisect_commits(
        commit_request, repository, request.good, request.bad, driver
    )
    search.verdict, search.summary = commit_bisection.summarize_step(search.step)


def _prepare_release(name: str | None, device: str = "cpu") -> VersionUnderTest:
    """Return a release that is ready for runs, and install it if need be."""
    words = [name] if name else []
    (target,) = guard_runs.prepare_targets(words, device, mends_toggles=False)
    folder = Path(sys.prefix) if target.requested_as == "current" else target.python.parents[1]
    return VersionUnderTest(target.requested_as, target.sources, target.python, folder)


def _check_same_result(search: BisectSearch, log: BisectSearch) -> None:
    """Refuse a log whose runs lead to another result, as its search or toggles differ."""
    results = [
        (
            each.verdict,
            [part.minimal_sets for part in each.toggle_searches],
            (each.step.before, each.step.after, each.step.undecided) if each.step else None,
        )
        for each in (search, log)
    ]
    if log.status is RunStatus.FINISHED and results[0] != results[1]:
        raise UnfixError(f"the log says {results[1]}, and its runs lead to {results[0]}")
    options.report_status("replayed from the log: nothing was run")
