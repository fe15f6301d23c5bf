"""What `unfix mutate` asks for, and what comes of it: a list, a run, a toggle."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from harness import machine, paths
from harness.cli import kinds, options, pages, resuming
from harness.cli.fuzz import running as fuzzing
from harness.cli.mutate import making
from harness.cli.mutate.progress import Progress
from harness.cli.owning import owning
from harness.cli.prove import running
from harness.errors import UnfixError
from harness.mutate import equal, fates, keeping, reach
from harness.mutate.looks import Asked
from harness.mutate.reach import Reaches
from harness.mutate.run import Mutating
from harness.prove.plan import Target
from harness.registry import writing
from harness.registry.catalogue import Catalogue
from harness.releases import managed
from harness.store.database import Store
from harness.store.mutate.faults import Fault, Made
from harness.store.mutate.values import Mutation
from harness.syntax.scopes import Sources

SETTINGS = (
    *("targets", "release", "diff", "operators", "fault", "limit", "seed", "at_least"),
    *("device", "profile", "memory", "suite", "examples", "equal"),
)
MOST = 2**33  # GiB that a limit can be


def run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    store = Store()
    earlier = _earlier(arguments, store) if arguments.resume is not None else None
    catalogue = options.catalogue(arguments)
    target = _release(arguments)
    if earlier is not None:
        _check_unchanged(earlier, arguments, target)
    changed = making.diff(arguments, target.tree, catalogue)
    later = changed is not None and changed.wide
    if later and (arguments.keep or arguments.list):
        raise UnfixError(
            f"{arguments.diff} changed {len(changed.lines)} modules: name a TARGET. Without one, "  # type: ignore[union-attr]
            "faults are made where a guard runs, which a run alone finds out"
        )
    made = Made((), ())
    if not later:
        made = making.make(arguments, target.tree, catalogue, changed)
    if arguments.keep:
        return _keep(arguments, made, target, catalogue)
    if arguments.list:
        chosen = making.chosen(arguments, made)
        _list(chosen, made, target.tree, arguments.json)
        return 0 if chosen else 1
    mutation = earlier or _new(arguments, target)
    if changed is not None:
        mutation.settings["between"] = changed.between
    mutation.at_least, mutation.left_out = arguments.at_least, []
    mutation.noted = making.stale(arguments, made)
    if changed is not None:
        mutation.noted += changed.problems
    asked = _asked(arguments, target)

    def planned(made: Made) -> Asked:
        """What is run, and the run told how much that is."""
        chosen = making.chosen(arguments, made)
        mutation.made, mutation.planned = len(made.faults), len(chosen)
        mutation.ids = [fault.id for fault in chosen]
        mutation.dropped = list(made.dropped)
        mutation.codes = making.codes(chosen, target.tree)
        families = making.families(chosen, target.tree, catalogue)
        return dataclasses.replace(asked, faults=chosen, families=families)

    def made_later(reaches: Reaches) -> Asked:
        assert changed is not None
        found = planned(making.make(arguments, target.tree, catalogue, changed, reaches))
        mutation.elsewhere = making.elsewhere(changed, target.tree, reaches)
        return found

    if later:
        stopped = _go(asked, mutation, store, made_later)
    else:
        stopped = _go(planned(made), mutation, store)
    code = pages.finish(kinds.MUTATE, mutation, arguments)
    if stopped:
        options.say("stopped; what is done is kept: `unfix mutate --resume` goes on")
        return 130
    return code


def _check(arguments: argparse.Namespace) -> None:
    if arguments.words:
        raise UnfixError("`unfix mutate` takes nothing behind `--`: --suite names guards")
    if arguments.slug and not arguments.keep:
        raise UnfixError("--as names the toggle that --keep makes")
    if arguments.slug:
        writing.check_id(arguments.slug)
    if arguments.limit is not None and arguments.limit < 1:
        raise UnfixError("--limit is a number of faults")
    if arguments.jobs is not None and arguments.jobs < 1:
        raise UnfixError(f"-j is how many faults at a time, and not {arguments.jobs}")
    if arguments.memory is not None and not 1 <= arguments.memory * 2**30 < MOST * 2**30:
        raise UnfixError(f"--memory is a positive number of GiB, and not {arguments.memory}")
    if arguments.examples < 1:
        raise UnfixError(f"--examples is how many times as many, and not {arguments.examples}")
    if arguments.at_least is not None and not 0 < arguments.at_least <= 100:
        raise UnfixError("--at-least is percent: more than 0, and 100 at most")
    arguments.toggles = [folder.resolve() for folder in arguments.toggles]


def _earlier(arguments: argparse.Namespace, store: Store) -> Mutation:
    """The run that this one goes on with, asked as it was."""
    run = resuming.stopped(store.mutate.all(), arguments.resume, "mutation run")
    found = store.mutate.whole(run)
    for setting in SETTINGS:
        setattr(arguments, setting, found.settings[setting])
    # A branch may stand elsewhere by now: what it was then is what the run is about.
    arguments.diff = found.settings.get("between") or arguments.diff
    arguments.toggles = [Path(folder) for folder in found.settings["toggles"]]
    return found


def _check_unchanged(earlier: Mutation, arguments: argparse.Namespace, target: Target) -> None:
    for before, now, what in (
        (earlier.settings["code"], _code(arguments), "guards or toggles"),
        (
            earlier.settings.get("sources"),
            reach.release_of(target.tree),
            f"the sources of SGLang {target.name}",
        ),
    ):
        resuming.refuse_if_changed(before, now, earlier.id, what)


def _release(arguments: argparse.Namespace) -> Target:
    """One release, with an environment: the later one of a diff, if there is one."""
    names = ["current", *(release.name for release in managed.all_releases())]
    word = arguments.release
    if word is None and ".." in arguments.diff:
        later = arguments.diff.rpartition("..")[2].lstrip(".")
        word = later if later in names else None
    if word is not None and word not in names:
        raise UnfixError(
            f"--release names one release that can be run, and not '{word}': "
            f"there are {', '.join(names[1:])}, and 'current'"
        )
    return fuzzing.releases([word] if word is not None else [], arguments.device)[0]


# Running


def _asked(arguments: argparse.Namespace, target: Target) -> Asked:
    """All but the faults."""
    jobs = running.usual_jobs(target.device) if arguments.jobs is None else arguments.jobs
    memory = running.share_of_memory(jobs) if arguments.memory is None else arguments.memory * 2**30
    words, place = fuzzing.suites(arguments.suite)
    return Asked(
        target=target,
        faults=(),
        families={},
        equals={one.id: one.because for one in equal.read().values()},
        doubts=arguments.equal or bool(arguments.fault),
        words=words,
        place=place,
        jobs=jobs,
        memory=int(memory),
        profile=arguments.profile,
        examples=arguments.examples,
        shrink=bool(arguments.fault),
        folders=arguments.toggles,
    )


def _guards(words: list[str]) -> list[Path]:
    """Files of guards, so that a change of theirs is noticed; ours are looked at anyway."""
    files = [Path(word.partition("::")[0]) for word in words]
    return [file for file in files if file.is_absolute()]


def _code(arguments: argparse.Namespace) -> str:
    return running.code_of(arguments.toggles, _guards(fuzzing.suites(arguments.suite)[0]))


def _new(arguments: argparse.Namespace, target: Target) -> Mutation:
    now = datetime.datetime.now(datetime.UTC)
    settings: dict[str, Any] = {name: getattr(arguments, name) for name in SETTINGS}
    settings["release"] = target.asked or target.name
    settings["code"] = _code(arguments)
    settings["sources"] = reach.release_of(target.tree)
    settings["commit"] = machine.commit()
    settings["toggles"] = [str(folder) for folder in arguments.toggles]
    return Mutation(
        id=f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        started=now.isoformat(timespec="seconds"),
        release=target.name,
        command=pages.command(),
        settings=settings,
    )


def _go(
    asked: Asked,
    mutation: Mutation,
    store: Store,
    later: Callable[[Reaches], Asked] | None = None,
) -> bool:
    """Run it; gives whether somebody stopped it."""
    try:
        with owning(), Progress(mutation) as progress:
            Mutating(asked, mutation, store.mutate, progress, later).go()
    except KeyboardInterrupt:
        return True
    return False


# Listing and keeping


def _list(faults: Sequence[Fault], made: Made, sources: Sources, as_json: bool) -> None:
    """The faults with their diffs, and nothing run."""
    if as_json:
        listed = msgspec.to_builtins(faults)
        options.print_json({"faults": listed, "dropped": msgspec.to_builtins(made.dropped)})
        return
    terminal = kinds.MUTATE.report("terminal")

    console = options.console()
    for fault in faults:
        source = sources.read(fault.module)
        assert source is not None
        terminal.fault(fault, fates.diff_of(fault, source.text), console)
    console.print(
        f"{len(faults)} of {len(made.faults)} faults; {len(made.dropped)} more were dropped: "
        "they do not compile, or are the same code"
    )


def _keep(arguments: argparse.Namespace, made: Made, target: Target, catalogue: Catalogue) -> int:
    """A fault as a file under toggles/."""
    fault = making.by_id(arguments.keep, made.faults)
    toggle = keeping.toggle_of(fault, target.tree, target.name)
    if arguments.slug:
        toggle = msgspec.structs.replace(toggle, id=arguments.slug)
    file = writing.write(toggle, paths.toggles(), catalogue)
    if arguments.json:
        options.print_json({"kept": str(file), "toggle": toggle.id})
        return 0
    options.console().print(
        f'{file}: write a guard for it, @pytest.mark.guards("{toggle.id}"), '
        f"then `unfix prove {toggle.id}`"
    )
    options.console().print(fates.diff_of(fault, target.tree.read(fault.module).text))  # type: ignore[union-attr]
    return 0
