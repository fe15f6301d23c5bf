"""What `unfix fuzz` asks for, and what it shows: a run, a replay, a regression."""

from __future__ import annotations

import argparse
import datetime
import difflib
import math
import os
import random
import secrets
from pathlib import Path
from typing import TypeVar

import msgspec

from harness import machine, paths
from harness.cli import kinds, options, pages
from harness.cli.fuzz.progress import Progress
from harness.cli.owning import owning
from harness.cli.prove import running
from harness.errors import UnfixError
from harness.fuzz import failures
from harness.fuzz.lanes import Asked
from harness.fuzz.run import Fuzzing
from harness.fuzz.values import Fuzzed, Under
from harness.matching.states import State, find
from harness.patching import boot
from harness.prove.plan import Target
from harness.releases import managed, sources
from harness.store.database import Store
from harness.store.fuzz.values import Failure, FuzzRun, Searched

Number = TypeVar("Number", int, float)
ONCE = 300.0  # seconds for an example that is replayed


def run(arguments: argparse.Namespace) -> int:
    if arguments.words:
        raise UnfixError("`unfix fuzz` takes nothing behind `--`: name suites, paths or tests")
    if arguments.replay is not None and arguments.keep is not None:
        raise UnfixError("--replay runs a failure again, --keep keeps it: say one of them")
    arguments.toggles = [folder.resolve() for folder in arguments.toggles]
    if arguments.keep is not None:
        return _keep(arguments)
    if arguments.replay is not None:
        return _replay(arguments)
    asked = _asked(arguments)
    return _go(asked, arguments)


def _asked(arguments: argparse.Namespace) -> Asked:
    seconds = options.budget(arguments.budget, "--for")
    words, place = suites(arguments.suites)
    targets = releases(arguments.release, arguments.device)
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(2**32)
    jobs = running.usual_jobs(arguments.device) if arguments.jobs is None else arguments.jobs
    return Asked(
        targets=targets,
        words=words,
        place=place,
        under=under(arguments, targets),
        seconds=seconds,
        jobs=_positive(jobs, "-j"),
        seed=seed,
        memory=_memory(arguments, jobs),
        limit=_positive(arguments.limit, "--limit"),
        folders=arguments.toggles,
    )


def _positive(number: Number, name: str) -> Number:
    if not 0 < number < math.inf:
        raise UnfixError(f"{name} is a positive number, and not {number}")
    return number


def _memory(arguments: argparse.Namespace, jobs: int) -> int:
    if arguments.memory is None:
        return running.share_of_memory(jobs)
    return int(_positive(arguments.memory, "--memory") * 2**30)


def suites(names: list[str]) -> tuple[list[str], Path]:
    """What pytest is told for these words, and where it stands."""
    root = paths.project()
    places = [_place(name) for name in names] or [root / "suites"]
    files = [Path(str(place).partition("::")[0]) for place in places]
    folders = [file if file.is_dir() else file.parent for file in files]
    if all(folder.is_relative_to(root) for folder in folders):
        return [str(place.relative_to(root)) for place in places], root
    return [str(place) for place in places], Path(os.path.commonpath(folders))


def _place(name: str) -> Path:
    file, colons, node = name.partition("::")
    for place in (paths.project() / "suites" / file, Path(file).absolute(), paths.project() / file):
        if place.exists():
            return Path(f"{place}{colons}{node}")
    folder = paths.project() / "suites"
    known = sorted(each.name for each in folder.iterdir() if list(each.glob("test_*.py")))
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}? There are" if near else "there are"
    raise UnfixError(f"no suite matches '{name}': {hint} {', '.join(known)}, and paths of tests")


def releases(words: list[str], device: str = "cpu") -> list[Target]:
    """Those that are asked for, installed if need be; 'all' are those that are here."""
    names = list(dict.fromkeys(name for word in words for name in word.split(",") if name))
    if "all" in names:
        names = [release.name for release in managed.all_releases(device) if release.ready]
    if not names:
        newest = managed.default(device) or managed.newest()
        names = ["current" if sources.current() else newest.name]
    return running.targets(names, device)


def under(arguments: argparse.Namespace, targets: list[Target]) -> Under:
    """The toggles that are put in, on every release."""
    known = options.catalogue(arguments)
    found: dict[str, str] = {}
    for direction, wanted in (("revert", State.FIXED), ("enable", State.BUGGY)):
        names = [name for word in getattr(arguments, direction) for name in boot.split(word)]
        for toggle in known.select_all(names) if names else []:
            for target in targets:
                state = find(toggle, target.tree).state
                if state is not wanted:
                    raise UnfixError(
                        f"{toggle.id} is {state.value} on SGLang {target.name}: "
                        f"--{direction} takes one that is {wanted.value}"
                    )
            if found.setdefault(toggle.id, direction) != direction:
                raise UnfixError(f"{toggle.id} cannot be reverted and enabled at once")
    return sorted(found.items())


def _go(asked: Asked, arguments: argparse.Namespace) -> int:
    """Fuzz; whoever stops it loses nothing of what was found."""

    stopped = False
    stored, store = _stored(asked), Store()

    def keep() -> None:
        store.fuzz.save(_so_far(stored, going.run))

    with Progress(asked, keep) as progress:
        going = Fuzzing(asked, progress)
        keep()
        try:
            with owning():
                going.go()
        except KeyboardInterrupt:
            stopped = True
        finally:
            keep()
            store.close()
    if arguments.json:
        options.print_json(msgspec.to_builtins(going.run))
    else:
        kinds.report("fuzz", "terminal").show(going.run, options.console())
    if stopped:
        options.say("stopped; what was found is kept")
        return 130
    return 1 if going.run.failures or going.run.problems else 0


def _stored(asked: Asked) -> FuzzRun:
    now = datetime.datetime.now(datetime.UTC)
    return FuzzRun(
        id=f"fuzz-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        started=now.isoformat(timespec="seconds"),
        command=pages.command(),
        commit=machine.commit(),
        under=asked.under,
    )


def _so_far(stored: FuzzRun, run: Fuzzed) -> FuzzRun:
    """What the store keeps of a run: the failures with all that runs them again."""
    return msgspec.structs.replace(
        stored,
        status=run.status,
        seconds=run.seconds,
        tests=[
            Searched(one.test, one.release, one.examples, one.seconds, one.left_out)
            for one in run.tests
        ],
        failures=[
            Failure(
                kept.name,
                kept.repro.test,
                kept.repro.release,
                kept.repro.headline,
                failures.as_text(kept.repro),
            )
            for kept in run.failures
        ],
        problems=list(run.problems),
    )


def _replay(arguments: argparse.Namespace) -> int:
    from harness.fuzz import replaying

    failure = failures.read(arguments.replay)
    failures.file_of(failure)
    targets = releases(arguments.release or [failure.release])
    words, place = suites([failure.test])
    done = [
        replaying.replay(
            failure,
            Asked(
                targets=[target],
                words=words,
                place=place,
                under=failure.under,
                seconds=ONCE,
                jobs=1,
                seed=failure.seed,
                memory=_memory(arguments, 1),
                limit=_positive(arguments.limit, "--limit"),
                folders=arguments.toggles,
            ),
        )
        for target in targets
    ]
    if arguments.json:
        options.print_json(msgspec.to_builtins(done))
    else:
        kinds.report("fuzz", "terminal").show_replays(done, options.console())
    return 1 if any(one.fails for one in done) else 0


def _keep(arguments: argparse.Namespace) -> int:
    kept = failures.keep(arguments.keep)
    if arguments.json:
        options.print_json({"kept": str(kept)})
    else:
        options.console().print(f"{failures.shown(kept)}: its suite runs it from now on")
    return 0
