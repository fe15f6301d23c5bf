"""Which releases are read, what of their findings is shown, and what the command ends with."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from harness import paths
from harness.audit import again, exceptions
from harness.audit.findings import Key
from harness.audit.run import LAUNCHES, Audit, audit
from harness.cli import options, pages
from harness.cli.kinds import report
from harness.errors import UnfixError
from harness.kernels import launched
from harness.registry import catalogue
from harness.releases import having, managed, sources
from harness.releases.managed import BASE
from harness.releases.sources import FolderTree, SourceTree, WheelTree

LIMITS = paths.PACKAGE / "audit" / "limits.yaml"


def run(arguments: argparse.Namespace) -> int:
    if bool(arguments.release) + bool(arguments.place) + bool(arguments.diff) > 1:
        raise UnfixError("--release, --from and --diff are three ways to say what is read: say one")
    if arguments.jobs < 1:
        raise UnfixError(f"-j {arguments.jobs} are no processes: say 1 or more")
    if arguments.again and (arguments.device == "cpu" or arguments.targets or arguments.diff):
        raise UnfixError("--again RECORD says what is run: with --device cuda, and no TARGET")
    if arguments.known and not arguments.again:
        raise UnfixError("--known RECORD is what is known of another record: say --again as well")
    seconds = options.budget(arguments.budget, "--for")
    if not arguments.again and not BASE.is_current():  # torch and Triton, which the releases share
        having.ready([managed.newest()], options.say)
    limits = arguments.limits or LIMITS
    if not limits.is_file():
        raise UnfixError(f"there is no file of limits {limits}")
    launches = arguments.launches or LAUNCHES
    launched.read(launches)  # what is wrong with it is said here
    found = (
        again.recorded(arguments.again) if arguments.again else _asked(arguments, limits, launches)
    )
    if arguments.device == "cuda":
        tree = _tree(arguments.diff.partition("..")[2] or found.release, arguments.place)
        known = again.recorded(arguments.known) if arguments.known else None
        found = again.on_gpu(found, _place(tree), arguments.jobs, seconds, options.say, known)
    exempt = exceptions.read(arguments.exceptions or exceptions.default())
    lines = {one.key for one in found.findings}
    there = {one.kernel for one in found.kernels}
    whole = not arguments.targets and not arguments.diff
    expired = [one for one in exempt if one.kernel in there and one.key not in lines and whole]
    found = found.excepted(exempt)
    if arguments.targets and not found.meant:
        raise UnfixError(
            f"no kernel is meant by {' '.join(arguments.targets)}: `unfix audit --all` lists all"
        )
    if arguments.upstream is not None:
        return _upstream(found, arguments.upstream)
    data = _data(found)
    pages.write(
        arguments,
        pages.default_page("audit"),
        lambda: str(report("audit", "page").html(found)),
        lambda: str(report("audit", "markdown").text(found)),
        data,
    )
    if arguments.sarif:
        pages.save(arguments.sarif, report("audit", "sarif").text(found))
    if arguments.json:
        options.print_json(data)
    else:
        report("audit", "terminal").show(found, options.console(), arguments.all)
    for one in expired:
        options.say(
            f"an exception has expired: {one.kernel} has no such finding any more: {one.line}"
        )
    return 1 if found.findings else 0


def _asked(arguments: argparse.Namespace, limits: Path, launches: Path) -> Audit:
    targets = _targets(arguments.targets)

    def read(tree: SourceTree, name: str, before: Path | None = None) -> Audit:
        how = limits, targets, arguments.jobs, options.say, before, launches
        return audit(_place(tree), name, *how)

    def one(tree: SourceTree) -> Audit:
        return read(tree, tree.name)

    def since(old: SourceTree, new: SourceTree) -> Audit:
        return read(new, f"{old.name}..{new.name}", _place(old))

    if arguments.diff:
        before, _, after = arguments.diff.partition("..")
        if not before or not after:
            raise UnfixError(f"--diff {arguments.diff} is no A..B: say --diff 0.5.18..0.5.23")
        return since(_tree(before), _tree(after))
    if arguments.release == "all":
        return _since([one(tree) for tree in having.read(managed.all_releases(), options.say)])
    if arguments.place:
        return one(_tree("", arguments.place))
    return one(_tree(arguments.release or managed.newest().name))


def _targets(words: list[str]) -> list[str]:
    """As they are, and with the modules that the toggles of a family change."""
    known = catalogue.load()
    toggles = known.select_all(word for word in words if known.knows(word))
    places = (place for one in toggles for each in one.variants for place in each.targets)
    return list(dict.fromkeys([*words, *(place.module for place in places)]))


def _tree(word: str, place: Path | None = None) -> SourceTree:
    if place:
        return sources.open_tree(place)
    if "/" in word or word.endswith(".whl") or Path(word).is_dir():
        return sources.open_tree(Path(word))
    return having.read([managed.get(word)], options.say)[0]


def _place(tree: SourceTree) -> Path:
    assert isinstance(tree, (FolderTree, WheelTree))
    return tree.folder if isinstance(tree, FolderTree) else tree.wheel


def _since(audits: list[Audit]) -> Audit:
    """The newest, each finding with the first release from which on all have it."""
    newest = audits[-1]
    has = [{finding.key for finding in one.findings} for one in audits]

    def since(key: Key) -> str:
        first = len(audits) - 1
        while first and key in has[first - 1]:
            first -= 1
        return audits[first].release

    kernels = tuple(
        replace(
            kernel,
            findings=tuple(replace(one, since=since(one.key)) for one in kernel.findings),
        )
        for kernel in newest.kernels
    )
    return replace(newest, kernels=kernels)


def _data(found: Audit) -> dict[str, Any]:
    return {
        "release": found.release,
        "limits": found.limits,
        "seconds": found.seconds,
        "gpu": found.gpu,
        "counts": found.counted(),
        "findings": [
            asdict(one) | {"condition": one.condition, "nearness": one.nearness}
            for one in found.findings
        ],
        "kernels": [asdict(one) for one in found.kernels],
    }


def _upstream(found: Audit, number: int) -> int:
    if not 1 <= number <= len(found.findings):
        raise UnfixError(f"there is no finding {number}: there are {len(found.findings)}")
    print(report("audit", "upstream").text(found.findings[number - 1], found.release))
    return 0
