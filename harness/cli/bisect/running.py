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

from harness import machine, paths
from harness.bisect import commits, guards, history, hunt, toggles
from harness.bisect.commands import Commands
from harness.bisect.hunt import Hunt, Log
from harness.bisect.judging import Rules
from harness.bisect.runners import Choices, Job, Place, Runner
from harness.cli import kinds, options, pages, resuming
from harness.cli.bisect import planned
from harness.cli.bisect.progress import Progress
from harness.cli.owning import owning
from harness.cli.prove import running
from harness.errors import UnfixError
from harness.patching import boot
from harness.patching.plan import Direction
from harness.registry.catalogue import Catalogue
from harness.releases import having, managed
from harness.store.bisect.values import Search, Trial
from harness.store.database import Store

# What a search that goes on takes over from the call that began it.
SETTINGS = (
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


class Replayed:
    """A runner that runs nothing: every answer is in the log."""

    def __init__(self, earlier: Search) -> None:
        self.steady, self.jobs = earlier.steady, earlier.jobs
        self.refused = {part.where: part.refused for part in earlier.parts}

    def unfit(self, place: Place, choices: Choices) -> dict[str, str]:
        return self.refused.get(place.name, {})

    def run(self, batch: list[Job]) -> Iterator[tuple[int, Trial]]:
        for job in batch:
            names = ", ".join(job.toggles) or "nothing"
            raise UnfixError(f"the log holds no run on {job.place.name} with {names} ({job.why})")
        yield from ()

    def close(self) -> None: ...


def run(arguments: argparse.Namespace) -> int:
    known = options.catalogue(arguments)
    if getattr(arguments, "dry_run", False):
        return _plan(arguments, _search(arguments, known, None), known)
    store = Store()
    earlier = _earlier(arguments, store)
    if earlier is not None:
        _as_before(arguments, earlier)
        known = options.catalogue(arguments)
    search = _search(arguments, known, earlier)
    replayed = arguments.replay is not None and earlier is not None
    runner = Replayed(earlier) if replayed and earlier else _runner(arguments, search)
    search.jobs, search.steady = runner.jobs, runner.steady
    if replayed:
        log: Log = _Unkept()
    else:
        store.bisect.begin(search)
        log = store.bisect
    stopped = _go(arguments, search, known, runner, log)
    if replayed and earlier is not None:
        _same(search, earlier)
        options.say("replayed from the log: nothing was run")
    code = pages.finish(kinds.BISECT, search, arguments)
    if stopped:
        options.say(f"stopped; `unfix bisect {search.kind} --resume` goes on")
        return 130
    return code


class _Unkept:
    """A store for what is only looked at again."""

    def trial(self, search: str, number: int, trial: Trial) -> None: ...

    def end(self, search: Search) -> None: ...


def _earlier(arguments: argparse.Namespace, store: Store) -> Search | None:
    if arguments.replay is not None:
        return _logged(arguments.replay, store)
    if arguments.resume is None:
        return None
    over, name = arguments.over, arguments.resume
    runs = [search for search in store.bisect.all() if name or search.kind == over]
    return store.bisect.whole(resuming.stopped(runs, name, f"search over {over}"))


def _logged(name: str, store: Store) -> Search:
    """A search to be shown again: of the store, or as it was recorded."""
    file = Path(name)
    if not file.is_file():
        found = store.bisect.get(name)
    else:
        try:
            found = msgspec.json.decode(file.read_bytes(), type=Search)
        except msgspec.MsgspecError as error:
            raise UnfixError(f"{file} is no record of a search: {error}") from error
    if found.status == "refused":
        raise UnfixError(f"search {found.id} was refused: {found.summary}")
    return found


def _as_before(arguments: argparse.Namespace, earlier: Search) -> None:
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
    resuming.refuse_if_changed(before, _code(arguments), earlier.id, what)
    if earlier.settings.get("folder") != str(Path.cwd()):
        raise UnfixError(f"search {earlier.id} began in {earlier.settings.get('folder')}")


def _code(arguments: argparse.Namespace) -> str:
    """What a search is about, as one digest: of its command those words that are files."""
    files = []
    for word in arguments.words:
        with contextlib.suppress(OSError):  # a word may be longer than a name can be
            if Path(word.partition("::")[0]).is_file():
                files.append(Path(word.partition("::")[0]))
    return running.code_of(arguments.toggles, files)


def _search(arguments: argparse.Namespace, known: Catalogue, earlier: Search | None) -> Search:
    now = datetime.datetime.now(datetime.UTC)
    arguments.toggles = [folder.resolve() for folder in arguments.toggles]
    settings = {
        name: _plain(getattr(arguments, name)) for name in SETTINGS if hasattr(arguments, name)
    }
    settings |= {"code": _code(arguments), "folder": str(Path.cwd())}
    held = _held(arguments, known)
    if earlier is not None and arguments.replay is None and held != earlier.held:
        raise UnfixError(f"search {earlier.id} held {earlier.held or 'nothing'}, this one {held}")
    return Search(
        id=earlier.id if earlier else f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        kind=arguments.over,
        started=earlier.started if earlier else now.isoformat(timespec="seconds"),
        words=arguments.words,
        command=earlier.command if earlier else pages.command(),
        seconds=earlier.seconds if earlier else 0.0,
        settings=settings,
        toggles=[running.facts_of(toggle) for toggle in known],
        held=earlier.held if earlier is not None else held,
        trials=earlier.trials if earlier else [],
    )


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value.resolve())
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _held(arguments: argparse.Namespace, known: Catalogue) -> dict[str, str]:
    """Toggles that are fixed or buggy in every run; those of the environment are."""
    reverted, enabled = boot.asked_for()
    held: dict[str, str] = {}
    for side, words in (
        ("fixed", [*arguments.hold_fixed, *enabled]),
        ("buggy", [*arguments.hold_buggy, *reverted]),
    ):
        for toggle in known.select_all([name for word in words for name in boot.split(word)]):
            if held.setdefault(toggle.id, side) != side:
                raise UnfixError(f"{toggle.id} cannot be held both fixed and buggy")
    return held


def _runner(arguments: argparse.Namespace, search: Search) -> Runner:
    rules = _rules(arguments)
    folder = paths.state() / "searches" / search.id
    node = guards.find(search.words) if arguments.over != "commits" else None
    if node is None:
        return Commands(
            search.words,
            rules,
            folder,
            jobs=getattr(arguments, "jobs", None) or 1,
            seconds=arguments.limit,
            serve=arguments.serve,
            ready=arguments.ready,
            toggles=arguments.toggles,
        )
    if arguments.metric or arguments.serve:
        raise UnfixError("--metric and --serve go with a command, not with a guard")
    jobs = arguments.jobs or 1
    memory = (
        running.share_of_memory(jobs) if arguments.memory is None else int(arguments.memory * 2**30)
    )
    return guards.Guards(
        node,
        rules,
        folder,
        jobs=jobs,
        seconds=arguments.limit or 300.0,
        memory=memory,
        device=arguments.device,
        profile=arguments.profile,
        toggles=arguments.toggles,
    )


def _rules(arguments: argparse.Namespace) -> Rules:
    rules = Rules(arguments.metric, arguments.below, arguments.above, arguments.symptom)
    rules.check()
    return rules


def _go(
    arguments: argparse.Namespace,
    search: Search,
    known: Catalogue,
    runner: Runner,
    log: Log,
) -> bool:
    """Search; gives whether somebody stopped it."""
    search.status = "stopped"
    clock = datetime.datetime.now()
    find = {"toggles": _toggles, "releases": _releases, "commits": _commits}[search.kind]
    try:
        with owning():
            try:
                find(arguments, search, known, Hunt(search, runner, log, Progress()))
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
        log.end(search)


def _toggles(arguments: argparse.Namespace, search: Search, known: Catalogue, going: Hunt) -> None:
    place = _place(arguments.release, arguments.device)
    search.machine = machine.facts(str(place.python))
    chosen = _candidates(arguments, search, known, place)
    part = going.toggles(
        place,
        chosen,
        every=arguments.all,
        repeat=arguments.repeat,
        confidence=arguments.confidence,
    )
    search.verdict, search.summary = part.verdict, hunt.summary(part)


def _candidates(
    arguments: argparse.Namespace, search: Search, known: Catalogue, place: Place
) -> toggles.Candidates:
    named = known.select_or_all(arguments.names)
    direction = Direction.ENABLE if arguments.enable else Direction.REVERT
    chosen = toggles.candidates(named, direction, place.tree, known, search.held)
    if not chosen.universe.toggles:
        verb = "put into" if arguments.enable else "taken out of"
        reasons = "; ".join(f"{name}: {why}" for name, why in chosen.left_out.items())
        raise UnfixError(f"no toggle can be {verb} SGLang {place.name} ({reasons})")
    return chosen


def _releases(arguments: argparse.Namespace, search: Search, known: Catalogue, going: Hunt) -> None:
    named = known.select_or_all(arguments.toggle)
    places: dict[str, Place] = {}

    def place(name: str) -> Place:
        if name not in places:
            places[name] = _place(name, arguments.device)
        return places[name]

    over = history.History(_between(arguments), place)
    step = history.Releases(going, over, named, known, search.held).go(
        arguments.good, arguments.bad, every=arguments.all
    )
    search.machine = machine.facts(str(place(arguments.bad).python))
    search.verdict, search.summary = history.summary(step, search.parts)


def _between(arguments: argparse.Namespace) -> list[str]:
    """The releases from one end to the other, the oldest first."""
    names = [release.name for release in managed.all_releases()]
    ends = [managed.get(name).name for name in (arguments.good, arguments.bad)]
    first, last = sorted(map(names.index, ends))
    if first == last:
        raise UnfixError(f"--good and --bad are both {arguments.good}")
    found = names[first : last + 1]
    if arguments.among is None:
        return found
    wanted = {*ends, *(managed.get(name).name for name in boot.split(arguments.among))}
    return [name for name in found if name in wanted]


def _commits(arguments: argparse.Namespace, search: Search, known: Catalogue, going: Hunt) -> None:
    base = _place(arguments.release)
    search.machine = machine.facts(str(base.python))
    asked = commits.Asked(
        python=str(base.python),
        environment=str(base.folder),
        words=search.words,
        rules=_rules(arguments),
        seconds=arguments.limit,
        serve=arguments.serve,
        ready=arguments.ready,
        held=search.held,
        toggles=[str(folder) for folder in arguments.toggles],
        folder=str(paths.state() / "searches" / f"{search.id}-commits"),
        replayed=arguments.replay is not None,
    )
    repository = commits.open_repository(arguments.repo)
    step = commits.go(asked, repository, arguments.good, arguments.bad, going)
    search.step = step
    search.verdict, search.summary = commits.summary(step)


def _place(name: str | None, device: str = "cpu") -> Place:
    """A release that is ready to be run on, installed if need be."""
    (target,) = running.targets([name] if name else [], device)
    folder = Path(sys.prefix) if target.asked == "current" else target.python.parents[1]
    return Place(target.asked, target.tree, target.python, folder)


def _plan(arguments: argparse.Namespace, search: Search, known: Catalogue) -> int:
    """What a search would do, and nothing of it done."""
    _rules(arguments)
    is_guard = guards.find(search.words) is not None
    if not is_guard and arguments.release is None and shutil.which(search.words[0]) is None:
        raise UnfixError(f"there is no command '{search.words[0]}'")
    if arguments.over == "releases":
        names = _between(arguments)
        planned.show_history_plan(names, arguments)
        return 0
    tree = having.tree(arguments.release, options.say)
    place = Place(arguments.release or str(tree.version), tree, Path(), Path())
    chosen = _candidates(arguments, search, known, place)
    jobs = arguments.jobs or 1
    base = 1 if is_guard else 3
    most, usual = hunt.expected(chosen, jobs, arguments.all, base)
    planned.show_plan(chosen.part("toggles", place.name), most, usual, jobs, arguments)
    return 0


def _same(search: Search, earlier: Search) -> None:
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
