"""What `prove` and `lifecycle` share: their options, a run, and what is shown of it."""

from __future__ import annotations

import argparse
import datetime
import hashlib
import math
import os
import secrets
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import machine, paths
from harness.cli import kinds, options, pages, resuming
from harness.cli.parsing import Parser
from harness.errors import NotReady, UnfixError

if TYPE_CHECKING:
    from harness.prove.plan import Asked, Target
    from harness.registry.catalogue import Catalogue
    from harness.store.database import Store
    from harness.store.prove.values import Run, ToggleFacts

RESERVE = 4 << 30  # of the machine's memory, for all but the tests
TOGETHER = 6  # tests on one GPU, of which some take 16 GiB


def add_arguments(parser: Parser) -> None:
    parser.behind = "pytest"
    parser.usage = f"{parser.prog} [TOGGLE or PATH …] [OPTIONS] [-- PYTEST ARGUMENTS]"
    parser.add_argument(
        "names",
        nargs="*",
        metavar="TOGGLE or PATH",
        help="toggles as ids, families or globs; guards as files, folders or file.py::test",
    )
    parser.add_argument(
        "--release",
        action="append",
        default=[],
        metavar="R",
        help="managed versions (a,b,…), 'all', or 'current'; what is missing is installed",
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="cpu")
    parser.add_argument("--profile", choices=("smoke", "default", "nightly"), default="default")
    parser.add_argument("-j", "--jobs", type=int, metavar="N", help="tests at a time")
    parser.add_argument("-k", metavar="EXPRESSION", help="only guards that pytest selects by it")
    parser.add_argument(
        "--limit", type=float, default=300.0, metavar="S", help="seconds for a test on one side"
    )
    parser.add_argument("--memory", type=float, metavar="GIB", help="memory for a test")
    parser.add_argument("--shard", default="1/1", metavar="K/N", help="one part of the cells")
    parser.add_argument(
        "--resume", nargs="?", const="", metavar="RUN", help="go on with a run that was stopped"
    )
    parser.add_argument(
        "--failed", nargs="?", const="", metavar="RUN", help="what an earlier run did not prove"
    )
    options.add_toggle_folders(parser)
    pages.add_arguments(parser)
    options.add_json(parser)
    parser.epilog = "Arguments behind `--` are pytest's: -m, -p, …"


def run(arguments: argparse.Namespace, kind: str) -> int:
    from harness.store.database import Store

    store = Store()
    catalogue = options.catalogue(arguments)
    arguments.names, guards = options.paths_among(arguments.names, arguments.usage, catalogue)
    arguments.words = _places([*guards, *arguments.words])
    arguments.device = _device(arguments.device)
    earlier = _earlier(arguments, kind, store)
    if earlier is not None:
        _as_before(arguments, earlier)
        catalogue = options.catalogue(arguments)
    asked = _asked(arguments, kind, earlier, catalogue, store.prove.took())
    if arguments.resume is not None and earlier is not None:
        new = earlier
        new.releases = []
    else:
        new = _new_run(arguments, kind, asked)
    _say_how_long(asked, new, store)
    stopped = _go(asked, new, store)
    done = store.prove.get(new.id)
    code = pages.finish(kinds.PROVE, [done], arguments)
    if stopped:
        options.say(f"stopped; what is done is kept: `unfix {kind} --resume` goes on")
        return 130
    if not done.cells:
        said = [problem for on in done.releases for problem in on.problems]
        if any("USAGE_ERROR" in problem for problem in said):
            return UnfixError.exit_code
        if said and not any(on.seconds_to_start for on in done.releases):
            return NotReady.exit_code
    return code


def _say_how_long(asked: Asked, new: Run, store: Store) -> None:
    from harness.prove import expecting
    from reports.shared import texts

    earlier = [run for run in store.prove.all() if run.kind == new.kind and run.id != new.id]
    whole = (store.prove.whole(run) for run in reversed(earlier[-expecting.RUNS :]))
    seconds = expecting.seconds(asked, new, whole)
    if seconds is None:
        options.say("no earlier run like this one is here to tell how long it takes")
    else:
        options.say(f"about {texts.duration(seconds)}, from what earlier runs here took")


def _earlier(arguments: argparse.Namespace, kind: str, store: Store) -> Run | None:
    """The run that this one goes on with or repeats in part."""
    if arguments.resume is not None and arguments.failed is not None:
        raise UnfixError("--resume goes on with a run, --failed makes a new one: say one of them")
    if arguments.resume is not None:
        runs = [run for run in store.prove.all() if arguments.resume or run.kind == kind]
        found = store.prove.whole(resuming.stopped(runs, arguments.resume, "run"))
    elif arguments.failed is not None:
        found = store.prove.get(arguments.failed or store.prove.latest(kind).id)
        if found.status == "running":
            raise UnfixError(f"run {found.id} is still going on")
    else:
        return None
    if found.kind != kind:
        raise UnfixError(f"run {found.id} is one of `unfix {found.kind}`")
    return found


SETTINGS = ("names", "release", "device", "profile", "k", "shard", "words", "limit", "memory")


def _as_before(arguments: argparse.Namespace, earlier: Run) -> None:
    """What was asked for then is asked for again, unless this call says something else."""
    unsaid = Parser()
    add_arguments(unsaid)
    defaults = vars(unsaid.parse_args([])) | {"words": []}
    for name in SETTINGS:
        if getattr(arguments, name) == defaults[name]:
            setattr(arguments, name, earlier.settings[name])
    arguments.toggles = arguments.toggles or [Path(p) for p in earlier.settings["toggles"]]
    if arguments.resume is not None:
        now = code_of(arguments.toggles, _guards(arguments.words))
        resuming.refuse_if_changed(earlier.settings["code"], now, earlier.id, "guards or toggles")


def _guards(words: list[str]) -> list[Path]:
    return [Path(word.partition("::")[0]) for word in words]


def code_of(toggles: list[Path], guards: list[Path]) -> str:
    """The guards and toggles that a run is about, as one digest."""
    places = [paths.project() / name for name in ("suites", "fixtures", "toggles", "harness")]
    places += [*toggles, *guards]
    digest = hashlib.sha256()
    for place in places:
        files = sorted(place.rglob("*")) if place.is_dir() else [place]
        for file in files:
            if (file.suffix in (".py", ".yaml") or file in guards) and file.is_file():
                digest.update(str(file).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _asked(
    arguments: argparse.Namespace,
    kind: str,
    earlier: Run | None,
    catalogue: Catalogue,
    took: dict[tuple[str, str, str], float],
) -> Asked:
    from harness.prove import plan

    toggles = options.toggles_or_all(catalogue, arguments.names, arguments.usage)
    jobs = usual_jobs(arguments.device) if arguments.jobs is None else arguments.jobs
    memory = share_of_memory(jobs) if arguments.memory is None else int(arguments.memory * 2**30)
    if jobs < 1 or memory < 1 or not 0 < arguments.limit < math.inf:
        raise UnfixError("-j, --limit and --memory are positive numbers")
    try:
        shard = plan.shard(arguments.shard)
    except ValueError as error:
        raise UnfixError(str(error)) from error
    resumed = arguments.resume is not None and earlier is not None
    failed = arguments.failed is not None and earlier is not None
    asked = plan.Asked(
        kind=kind,
        targets=targets(arguments.release, arguments.device),
        toggles=toggles,
        named=bool(arguments.names),
        device=arguments.device,
        jobs=jobs,
        seconds=arguments.limit,
        memory=memory,
        profile=arguments.profile,
        words=[*(["-k", arguments.k] if arguments.k else []), *arguments.words],
        folders=arguments.toggles,
        shard=shard,
        skip=plan.proven(earlier.cells) if failed and earlier else frozenset(),
        done={cell.key: cell for cell in earlier.cells} if resumed and earlier else {},
        took=took,
    )
    if failed and earlier and earlier.green:
        raise UnfixError("that run left nothing to prove")
    return asked


def _places(words: list[str]) -> list[str]:
    """Paths of guards are the caller's; workers have a folder of their own."""
    from harness.prove.plan import is_place

    found = []
    for index, word in enumerate(words):
        file, colons, node = word.partition("::")
        found.append(f"{Path(file).resolve()}{colons}{node}" if is_place(words, index) else word)
    return found


def usual_jobs(device: str) -> int:
    """Tests at a time: one a core, and on a GPU no more than its memory surely holds."""
    cores = len(os.sched_getaffinity(0))
    return cores if device == "cpu" else min(cores, TOGETHER)


def share_of_memory(jobs: int) -> int:
    """What one test may take so that all together leave the machine alive."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(2 << 30, (total - RESERVE) // (jobs + 1))


def _device(wanted: str) -> str:
    if wanted == "auto":
        return "cuda" if shutil.which("nvidia-smi") else "cpu"
    return wanted


def targets(words: list[str], device: str = "cpu") -> list[Target]:
    from harness.prove.plan import Target
    from harness.releases import having, managed, sources

    machine.require(device)
    names = list(dict.fromkeys(name for word in words for name in word.split(",") if name))
    if "all" in names:
        names = [release.name for release in managed.all_releases()]
    if not names:
        names = ["current"] if sources.current() is not None else [managed.newest().name]
    having.ready([managed.get(name, device) for name in names if name != "current"], options.say)
    found = []
    for name in names:
        if name == "current":
            tree = managed.tree(name)
            python = Path(sys.executable)
            found.append(Target(str(tree.version or name), python, tree, name, device))
            continue
        release = managed.get(name, device)
        found.append(Target(name, release.python, release.sources(), name, device))
    twice = next((t.name for t in found if [o.name for o in found].count(t.name) > 1), None)
    if twice:
        raise UnfixError(
            f"SGLang {twice} is asked for twice: as 'current' and as a managed release"
        )
    return found


def _new_run(arguments: argparse.Namespace, kind: str, asked: Asked) -> Run:
    from harness.store.prove.values import Run

    now = datetime.datetime.now(datetime.UTC)
    settings = {name: getattr(arguments, name) for name in SETTINGS}
    settings["code"] = code_of(arguments.toggles, _guards(arguments.words))
    settings["commit"] = machine.commit()
    settings["jobs"] = asked.jobs
    settings["toggles"] = [str(folder.resolve()) for folder in arguments.toggles]
    return Run(
        id=f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        kind=kind,
        started=now.isoformat(timespec="seconds"),
        command=pages.command(),
        settings=settings,
        toggles=[facts_of(toggle) for toggle in asked.toggles],
    )


def facts_of(toggle: Any) -> ToggleFacts:
    from harness.store.prove.values import ToggleFacts

    return ToggleFacts(
        id=toggle.id,
        title=toggle.title,
        family=toggle.family,
        symptom=toggle.symptom.value,
        upstream=list(toggle.upstream),
        why=toggle.why.strip(),
    )


def _go(asked: Asked, new: Run, store: Store) -> bool:
    """Run it; gives whether somebody stopped it."""
    from harness.cli.owning import owning
    from harness.cli.prove.progress import Progress
    from harness.prove.run import Proving

    try:
        with owning(), Progress(asked) as progress:
            Proving(asked, new, store.prove, progress).go()
    except KeyboardInterrupt:
        return True
    return False
