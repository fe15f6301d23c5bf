"""What `unfix bisect` builds from its arguments: the search, whoever runs it, and what is shown."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from harness.cli import options, resumption, run_kinds, run_output
from harness.cli.bisect import dry_run
from harness.cli.bisect.progress import BisectProgress
from harness.cli.process_cleanup import end_processes_on_exit
from harness.cli.prove import execution
from harness.core import machine, paths
from harness.core.errors import UnfixError
from harness.fixes.registry.toggle_catalogue import ToggleCatalogue
from harness.patching import bootstrap
from harness.patching.patch_plan import Direction
from harness.releases import managed_releases, provisioning
from harness.runs.bisect import (
    commit_bisection,
    guard_runner,
    release_bisection,
    search_driver,
    toggle_candidates,
)
from harness.runs.bisect.command_runner import CommandRunner
from harness.runs.bisect.outcome_rules import OutcomeRules
from harness.runs.bisect.search_driver import SearchDriver, TrialLog
from harness.runs.bisect.trial_runner import ToggleChoices, TrialJob, TrialRunner, VersionUnderTest
from harness.store.bisect.values import BisectSearch, BisectTrial
from harness.store.database import Store

# What a search that goes on takes over from the call that began it.
RESUMED_SETTINGS = (
    *("names", "release", "enable", "repeat", "confidence", "good", "bad", "repo", "all", "jobs"),
    *(
        "device",
        "profile",
        "memory",
        "toggle",
        "among",
        "limit",
        "symptom",
        "metric",
        "below",
        "above",
    ),
    *("serve", "ready", "hold_fixed", "hold_buggy", "toggles"),
)


class ReplayRunner:
    """A runner that runs nothing: every answer is in the log."""

    def __init__(self, earlier: BisectSearch) -> None:
        self.is_deterministic, self.jobs = earlier.steady, earlier.jobs
        self.unfit_toggles = {part.where: part.refused for part in earlier.parts}

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


def run_bisect(arguments: argparse.Namespace) -> int:
    known = options.load_catalogue(arguments)
    if getattr(arguments, "dry_run", False):
        return _print_plan(arguments, _make_search(arguments, known, None), known)
    store = Store()
    earlier = _find_earlier_search(arguments, store)
    if earlier is not None:
        _restore_settings(arguments, earlier)
        known = options.load_catalogue(arguments)
    search = _make_search(arguments, known, earlier)
    replayed = arguments.replay is not None and earlier is not None
    runner = ReplayRunner(earlier) if replayed and earlier else _make_runner(arguments, search)
    search.jobs, search.steady = runner.jobs, runner.is_deterministic
    if replayed:
        log: TrialLog = _DiscardingLog()
    else:
        store.bisect.begin(search)
        log = store.bisect
    stopped = _search_until_stopped(arguments, search, known, runner, log)
    if replayed and earlier is not None:
        _check_same_result(search, earlier)
        options.report_status("replayed from the log: nothing was run")
    code = run_output.write_and_print_run(run_kinds.BISECT, search, arguments)
    if stopped:
        options.report_status(f"stopped; `unfix bisect {search.kind} --resume` goes on")
        return 130
    return code


class _DiscardingLog:
    """A store for what is only looked at again."""

    def save_trial(self, search: str, number: int, trial: BisectTrial) -> None: ...

    def save(self, search: BisectSearch) -> None: ...


def _find_earlier_search(arguments: argparse.Namespace, store: Store) -> BisectSearch | None:
    if arguments.replay is not None:
        return _read_logged_search(arguments.replay, store)
    if arguments.resume is None:
        return None
    over, name = arguments.over, arguments.resume
    runs = [search for search in store.bisect.list_runs() if name or search.kind == over]
    return store.bisect.load_whole(resumption.find_stopped_run(runs, name, f"search over {over}"))


def _read_logged_search(name: str, store: Store) -> BisectSearch:
    """A search to be shown again: of the store, or as it was recorded."""
    file = Path(name)
    if not file.is_file():
        found = store.bisect.get(name)
    else:
        try:
            found = msgspec.json.decode(file.read_bytes(), type=BisectSearch)
        except msgspec.MsgspecError as error:
            raise UnfixError(f"{file} is no record of a search: {error}") from error
    if found.status == "refused":
        raise UnfixError(f"search {found.id} was refused: {found.summary}")
    return found


def _restore_settings(arguments: argparse.Namespace, earlier: BisectSearch) -> None:
    if earlier.kind != arguments.over:
        raise UnfixError(f"{earlier.id} is a search over {earlier.kind}")
    for name, value in earlier.settings.items():
        if name == "repo":
            value = arguments.repo or Path(value).expanduser()
        if name == "toggles":
            if arguments.toggles:  # the log may come from another machine
                continue
            value = [Path(folder) for folder in value]
        setattr(arguments, name, value)
    arguments.words = earlier.words
    if arguments.resume is None:
        return
    before = earlier.settings.get("code")
    what = "the command, guards or toggles"
    resumption.refuse_if_changed(before, _digest_code(arguments), earlier.id, what)
    if earlier.settings.get("folder") != str(Path.cwd()):
        raise UnfixError(f"search {earlier.id} began in {earlier.settings.get('folder')}")


def _digest_code(arguments: argparse.Namespace) -> str:
    """What a search is about, as one digest: of its command those words that are files."""
    files = []
    for word in arguments.words:
        with contextlib.suppress(OSError):  # a word may be longer than a name can be
            if Path(word.partition("::")[0]).is_file():
                files.append(Path(word.partition("::")[0]))
    return execution.digest_code(arguments.toggles, files)


def _make_search(
    arguments: argparse.Namespace, catalogue: ToggleCatalogue, earlier: BisectSearch | None
) -> BisectSearch:
    now = datetime.datetime.now(datetime.UTC)
    arguments.toggles = [folder.resolve() for folder in arguments.toggles]
    settings = {
        name: _to_plain_value(getattr(arguments, name))
        for name in RESUMED_SETTINGS
        if hasattr(arguments, name)
    }
    settings |= {"code": _digest_code(arguments), "folder": str(Path.cwd())}
    held = _find_held_toggles(arguments, catalogue)
    if earlier is not None and arguments.replay is None and held != earlier.held:
        raise UnfixError(f"search {earlier.id} held {earlier.held or 'nothing'}, this one {held}")
    return BisectSearch(
        id=earlier.id if earlier else f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        kind=arguments.over,
        started=earlier.started if earlier else now.isoformat(timespec="seconds"),
        words=arguments.words,
        command=earlier.command if earlier else run_output.get_recorded_command(),
        seconds=earlier.seconds if earlier else 0.0,
        settings=settings,
        toggles=[execution.make_toggle_facts(toggle) for toggle in catalogue],
        held=earlier.held if earlier is not None else held,
        trials=earlier.trials if earlier else [],
    )


def _to_plain_value(value: object) -> object:
    if isinstance(value, Path):
        return str(value.resolve())
    return [_to_plain_value(one) for one in value] if isinstance(value, list) else value


def _find_held_toggles(arguments: argparse.Namespace, catalogue: ToggleCatalogue) -> dict[str, str]:
    """Toggles that are fixed or buggy in every run; those of the environment are."""
    reverted, enabled = bootstrap.read_requested_ids()
    held: dict[str, str] = {}
    for side, words in (
        ("fixed", [*arguments.hold_fixed, *enabled]),
        ("buggy", [*arguments.hold_buggy, *reverted]),
    ):
        for toggle in catalogue.select_all(
            [name for word in words for name in bootstrap.split_ids(word)]
        ):
            if held.setdefault(toggle.id, side) != side:
                raise UnfixError(f"{toggle.id} cannot be held both fixed and buggy")
    return held


def _make_runner(arguments: argparse.Namespace, search: BisectSearch) -> TrialRunner:
    rules = _make_rules(arguments)
    folder = paths.state_folder() / "searches" / search.id
    node = guard_runner.find_guard_node(search.words) if arguments.over != "commits" else None
    if node is None:
        return CommandRunner(
            search.words,
            rules,
            folder,
            jobs=getattr(arguments, "jobs", None) or 1,
            time_limit=arguments.limit,
            server_command=arguments.serve,
            ready_url=arguments.ready,
            toggle_folders=arguments.toggles,
        )
    if arguments.metric or arguments.serve:
        raise UnfixError("--metric and --serve go with a command, not with a guard")
    jobs = arguments.jobs or 1
    memory = (
        execution.choose_memory_limit(jobs)
        if arguments.memory is None
        else int(arguments.memory * 2**30)
    )
    return guard_runner.GuardRunner(
        node,
        rules,
        folder,
        jobs=jobs,
        time_limit=arguments.limit or 300.0,
        memory_limit=memory,
        device=arguments.device,
        profile=arguments.profile,
        toggle_folders=arguments.toggles,
    )


def _make_rules(arguments: argparse.Namespace) -> OutcomeRules:
    rules = OutcomeRules(arguments.metric, arguments.below, arguments.above, arguments.symptom)
    rules.check()
    return rules


def _search_until_stopped(
    arguments: argparse.Namespace,
    search: BisectSearch,
    catalogue: ToggleCatalogue,
    runner: TrialRunner,
    log: TrialLog,
) -> bool:
    """Search; gives whether somebody stopped it."""
    search.status = "stopped"
    clock = datetime.datetime.now()
    find = {"toggles": _search_toggles, "releases": _search_releases, "commits": _search_commits}[
        search.kind
    ]
    try:
        with end_processes_on_exit():
            try:
                find(
                    arguments,
                    search,
                    catalogue,
                    SearchDriver(search, runner, log, BisectProgress()),
                )
            finally:
                runner.close()
        search.status = "finished"
        return False
    except KeyboardInterrupt:
        return True
    except UnfixError as error:
        search.status, search.summary = "refused", str(error)
        raise
    finally:
        search.seconds += (datetime.datetime.now() - clock).total_seconds()
        log.save(search)


def _search_toggles(
    arguments: argparse.Namespace,
    search: BisectSearch,
    catalogue: ToggleCatalogue,
    hunt_run: SearchDriver,
) -> None:
    place = _prepare_release(arguments.release, arguments.device)
    search.machine = machine.collect_machine_facts(str(place.python))
    chosen = _choose_candidates(arguments, search, catalogue, place)
    part = hunt_run.search_toggles(
        place,
        chosen,
        find_all=arguments.all,
        repeat=arguments.repeat,
        confidence=arguments.confidence,
    )
    search.verdict, search.summary = part.verdict, search_driver.summarize_toggle_search(part)


def _choose_candidates(
    arguments: argparse.Namespace,
    search: BisectSearch,
    catalogue: ToggleCatalogue,
    release: VersionUnderTest,
) -> toggle_candidates.ToggleCandidates:
    named = catalogue.select_or_all(arguments.names)
    direction = Direction.ENABLE if arguments.enable else Direction.REVERT
    chosen = toggle_candidates.select_candidates(
        named, direction, release.tree, catalogue, search.held
    )
    if not chosen.universe.toggles:
        verb = "put into" if arguments.enable else "taken out of"
        reasons = "; ".join(f"{name}: {why}" for name, why in chosen.left_out.items())
        raise UnfixError(f"no toggle can be {verb} SGLang {release.name} ({reasons})")
    return chosen


def _search_releases(
    arguments: argparse.Namespace,
    search: BisectSearch,
    catalogue: ToggleCatalogue,
    hunt_run: SearchDriver,
) -> None:
    named = catalogue.select_or_all(arguments.toggle)
    places: dict[str, VersionUnderTest] = {}

    def place(name: str) -> VersionUnderTest:
        if name not in places:
            places[name] = _prepare_release(name, arguments.device)
        return places[name]

    over = release_bisection.ReleaseSeries(_list_releases_between(arguments), place)
    step = release_bisection.ReleaseBisection(hunt_run, over, named, catalogue, search.held).run(
        arguments.good, arguments.bad, find_all=arguments.all
    )
    search.machine = machine.collect_machine_facts(str(place(arguments.bad).python))
    search.verdict, search.summary = release_bisection.summarize_release_search(step, search.parts)


def _list_releases_between(arguments: argparse.Namespace) -> list[str]:
    """The releases from one end to the other, the oldest first."""
    names = [release.name for release in managed_releases.list_releases()]
    ends = [managed_releases.get_release(name).name for name in (arguments.good, arguments.bad)]
    first, last = sorted(map(names.index, ends))
    if first == last:
        raise UnfixError(f"--good and --bad are both {arguments.good}")
    found = names[first : last + 1]
    if arguments.among is None:
        return found
    wanted = {
        *ends,
        *(managed_releases.get_release(name).name for name in bootstrap.split_ids(arguments.among)),
    }
    return [name for name in found if name in wanted]


def _search_commits(
    arguments: argparse.Namespace,
    search: BisectSearch,
    catalogue: ToggleCatalogue,
    hunt_run: SearchDriver,
) -> None:
    base = _prepare_release(arguments.release)
    search.machine = machine.collect_machine_facts(str(base.python))
    asked = commit_bisection.CommitBisectRequest(
        python=str(base.python),
        environment_folder=str(base.environment_folder),
        command=search.words,
        rules=_make_rules(arguments),
        time_limit=arguments.limit,
        server_command=arguments.serve,
        ready_url=arguments.ready,
        pinned_toggles=search.held,
        toggle_folders=[str(folder) for folder in arguments.toggles],
        state_folder=str(paths.state_folder() / "searches" / f"{search.id}-commits"),
        replay_only=arguments.replay is not None,
    )
    repository = commit_bisection.open_repository(arguments.repo)
    step = commit_bisection.bisect_commits(
        asked, repository, arguments.good, arguments.bad, hunt_run
    )
    search.step = step
    search.verdict, search.summary = commit_bisection.summarize_step(step)


def _prepare_release(name: str | None, device: str = "cpu") -> VersionUnderTest:
    """A release that is ready to be run on, installed if need be."""
    (target,) = execution.prepare_targets([name] if name else [], device)
    folder = Path(sys.prefix) if target.requested_as == "current" else target.python.parents[1]
    return VersionUnderTest(target.requested_as, target.sources, target.python, folder)


def _print_plan(
    arguments: argparse.Namespace, search: BisectSearch, catalogue: ToggleCatalogue
) -> int:
    """What a search would do, and nothing of it done."""
    _make_rules(arguments)
    is_guard = guard_runner.find_guard_node(search.words) is not None
    if not is_guard and arguments.release is None and shutil.which(search.words[0]) is None:
        raise UnfixError(f"there is no command '{search.words[0]}'")
    if arguments.over == "releases":
        names = _list_releases_between(arguments)
        dry_run.print_history_plan(names, arguments)
        return 0
    tree = provisioning.ensure_tree(arguments.release, options.report_status)
    place = VersionUnderTest(arguments.release or str(tree.version), tree, Path(), Path())
    chosen = _choose_candidates(arguments, search, catalogue, place)
    jobs = arguments.jobs or 1
    base = 1 if is_guard else 3
    most, usual = search_driver.estimate_runs(chosen, jobs, arguments.all, base)
    dry_run.print_plan(
        chosen.make_toggle_search("toggles", place.name), most, usual, jobs, arguments
    )
    return 0


def _check_same_result(search: BisectSearch, earlier: BisectSearch) -> None:
    """A log that leads elsewhere than it says is not of this search, or not of these toggles."""
    ends = [
        (
            one.verdict,
            [part.sets for part in one.parts],
            (one.step.before, one.step.after, one.step.between) if one.step else None,
        )
        for one in (search, earlier)
    ]
    if earlier.status == "finished" and ends[0] != ends[1]:
        raise UnfixError(f"the log says {ends[1]}, and its runs lead to {ends[0]}")
