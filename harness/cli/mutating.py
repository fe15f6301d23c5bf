"""What `unfix mutate` asks for, and what comes of it: a list, a run, a toggle."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import difflib
import os
import random
import secrets
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from harness import paths
from harness.cli import fuzzing, mutate_pages, options, running
from harness.cli.owning import owning
from harness.errors import UnfixError
from harness.matching.states import Sources
from harness.mutate import diffs, equal, fates, keeping, making, operators, targets
from harness.mutate.faults import Fault, Made
from harness.mutate.looks import Asked
from harness.mutate.operator import Operator
from harness.mutate.run import Mutating
from harness.patching import boot
from harness.prove.plan import Target
from harness.registry.catalogue import Catalogue
from harness.store.database import Store
from harness.store.mutations import Code, Mutation

SETTINGS = (
    *("targets", "release", "diff", "operators", "fault", "limit", "seed", "at_least"),
    *("profile", "memory", "suite", "examples"),
)


def run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    store = Store()
    earlier = _earlier(arguments, store) if arguments.resume is not None else None
    catalogue = options.catalogue(arguments)
    target = _release(arguments)
    made = make(arguments, target.tree, catalogue)
    if arguments.keep:
        return _keep(arguments, made, target)
    chosen = _chosen(arguments, made)
    if arguments.list:
        mutate_pages.show_list(chosen, made, target.tree, arguments.json)
        return 0 if chosen else 1
    families = _families(chosen, target.tree, catalogue)
    asked = _asked(arguments, target, chosen, families)
    mutation = earlier or _new(arguments, target)
    if earlier is not None and earlier.settings["code"] != _code(arguments):
        raise UnfixError(
            f"guards or toggles have changed since run {earlier.id} was stopped: start anew"
        )
    mutation.at_least = arguments.at_least
    mutation.made, mutation.planned = len(made.faults), len(chosen)
    mutation.dropped = list(made.dropped)
    mutation.codes = _codes(chosen, target.tree)
    mutation.problems, mutation.left_out = _stale(arguments, made), []
    stopped = _go(asked, mutation, store)
    mutate_pages.write(mutation, arguments)
    mutate_pages.show(mutation, arguments)
    if stopped:
        options.say("stopped; what is done is kept: `unfix mutate --resume` goes on")
        return 130
    return 0 if mutation.green else 1


def _check(arguments: argparse.Namespace) -> None:
    if arguments.words:
        raise UnfixError("`unfix mutate` takes nothing behind `--`: --suite names guards")
    if arguments.slug and not arguments.keep:
        raise UnfixError("--as names the toggle that --keep makes")
    if arguments.limit is not None and arguments.limit < 1:
        raise UnfixError("--limit is a number of faults")
    if arguments.at_least is not None and not 0 < arguments.at_least <= 100:
        raise UnfixError("--at-least is percent: more than 0, and 100 at most")
    arguments.toggles = [folder.resolve() for folder in arguments.toggles]


def _earlier(arguments: argparse.Namespace, store: Store) -> Mutation:
    """The run that this one goes on with, asked as it was."""
    name = arguments.resume
    found = store.find_mutation(name) if name else store.newest_mutation()
    if found is None:
        raise UnfixError(f"{store.file} holds no mutation run {name}: `unfix report --list`")
    if found.status == "running":
        raise UnfixError(f"run {found.id} is still going on")
    if found.status == "finished":
        raise UnfixError(f"run {found.id} is finished: there is nothing to resume")
    for setting in SETTINGS:
        setattr(arguments, setting, found.settings[setting])
    arguments.toggles = [Path(folder) for folder in found.settings["toggles"]]
    return found


def _release(arguments: argparse.Namespace) -> Target:
    """One release, with an environment: the later one of a diff, if there is one."""
    word = arguments.release
    if not word and ".." in arguments.diff:
        later = arguments.diff.rpartition("..")[2]
        word = later if later.count(".") > 1 else None
    return fuzzing.releases([word] if word else [])[0]


# Making


def make(arguments: argparse.Namespace, sources: Sources, catalogue: Catalogue) -> Made:
    """The faults that the call is about, before a sample is taken."""
    kinds = _operators(arguments.operators)
    if not arguments.diff:
        return making.make(targets.named(arguments.targets, sources, catalogue), sources, kinds)
    newer, lines, _ = diffs.changed(*diffs.parse(arguments.diff))
    places = diffs.functions(newer, lines)
    if arguments.targets:
        wanted = set(targets.named(arguments.targets, newer, catalogue))
        places = [place for place in places if place in wanted]
    return making.make(places, newer, kinds, lines)


def _operators(text: str) -> list[Operator] | None:
    known = operators.all()
    names = boot.split(text)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}? There are" if near else "there are"
            raise UnfixError(f"no operator is called '{name}': {hint} {', '.join(known)}")
    return [known[name] for name in names] or None


def _chosen(arguments: argparse.Namespace, made: Made) -> tuple[Fault, ...]:
    """Those that were named, or a sample, in the order of the source."""
    faults = list(made.faults)
    names = [name for word in arguments.fault for name in boot.split(word)]
    if names:
        faults = [_by_id(name, faults) for name in dict.fromkeys(names)]
    if arguments.limit is not None and arguments.limit < len(faults):
        picked = random.Random(arguments.seed).sample(range(len(faults)), arguments.limit)
        faults = [faults[index] for index in sorted(picked)]
    return tuple(faults)


def _by_id(name: str, faults: Iterable[Fault]) -> Fault:
    found = [fault for fault in faults if fault.id.startswith(name)]
    if len(found) != 1:
        how_many = "more than one fault is" if found else "no fault of these targets is"
        raise UnfixError(f"{how_many} called {name}: `unfix mutate … --list` shows them")
    return found[0]


def _families(faults: Iterable[Fault], sources: Sources, catalogue: Catalogue) -> dict[str, str]:
    """The family of toggles that each target belongs to, the first of several."""
    found: dict[str, str] = {}
    wanted = {fault.target for fault in faults}
    for family in dict.fromkeys(toggle.family for toggle in catalogue):
        # A family that this release has nothing of is a wrong call elsewhere.
        with contextlib.suppress(UnfixError):
            if wanted - found.keys():
                for target in targets.named([family], sources, catalogue):
                    found.setdefault(str(target), family)
    return found


def _codes(faults: Iterable[Fault], sources: Sources) -> list[Code]:
    """The text of each target, for the page."""
    found: dict[str, Code] = {}
    for fault in faults:
        if fault.target in found:
            continue
        source = sources.read(fault.module)
        assert source is not None
        for scope in source.scopes(fault.qualname):
            area = scope.range()
            if area.start.index <= fault.start < area.end.index:
                place = fault.module.replace(".", "/") + ".py"
                first = area.start.line + 1
                code = Code(fault.module, fault.qualname, place, first, scope.text())
                found[fault.target] = code
    return list(found.values())


# Running


def _asked(
    arguments: argparse.Namespace,
    target: Target,
    faults: tuple[Fault, ...],
    families: dict[str, str],
) -> Asked:
    jobs = len(os.sched_getaffinity(0)) if arguments.jobs is None else arguments.jobs
    memory = running.share_of_memory(jobs) if arguments.memory is None else arguments.memory * 2**30
    if jobs < 1 or memory < 1 or arguments.examples < 1:
        raise UnfixError("-j, --memory and --examples are positive numbers")
    words, place = fuzzing.suites(arguments.suite)
    return Asked(
        target=target,
        faults=faults,
        families=families,
        equals={one.id: one.because for one in equal.read().values()},
        words=words,
        place=place,
        jobs=jobs,
        memory=int(memory),
        profile=arguments.profile,
        examples=arguments.examples,
        shrink=bool(arguments.fault),
        folders=arguments.toggles,
    )


def _stale(arguments: argparse.Namespace, made: Made) -> list[str]:
    """Faults that are said to be equal and are made no more, where all of a target's were made."""
    if arguments.diff or arguments.operators or arguments.targets:
        return []
    modules = {fault.module for fault in made.faults}
    return [
        f"{equal.default().name}: {one.id} of {one.target} is made no more: look at it again"
        for one in equal.lost(equal.read().values(), made.faults, modules)
    ]


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
    settings["toggles"] = [str(folder) for folder in arguments.toggles]
    return Mutation(
        id=f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        started=now.isoformat(timespec="seconds"),
        release=target.name,
        command=["unfix", *sys.argv[1:]],
        settings=settings,
    )


def _go(asked: Asked, mutation: Mutation, store: Store) -> bool:
    """Run it; gives whether somebody stopped it."""
    try:
        with owning(), mutate_pages.Progress(mutation) as progress:
            Mutating(asked, mutation, store, progress).go()
    except KeyboardInterrupt:
        return True
    return False


# Keeping


def _keep(arguments: argparse.Namespace, made: Made, target: Target) -> int:
    """A fault as a file under toggles/."""
    fault = _by_id(arguments.keep, made.faults)
    toggle = keeping.toggle_of(fault, target.tree, target.name)
    if arguments.slug:
        toggle = msgspec.structs.replace(toggle, id=arguments.slug)
    file = paths.toggles() / f"{toggle.id}.yaml"
    if file.exists():
        raise UnfixError(f"{file} is there already: --as names another toggle")
    file.write_text(keeping.as_yaml(toggle))
    if arguments.json:
        options.print_json({"kept": str(file), "toggle": toggle.id})
        return 0
    options.console().print(
        f'{file}: write a guard for it, @pytest.mark.guards("{toggle.id}"), '
        f"then `unfix prove {toggle.id}`"
    )
    options.console().print(fates.diff_of(fault, target.tree.read(fault.module).text))  # type: ignore[union-attr]
    return 0
