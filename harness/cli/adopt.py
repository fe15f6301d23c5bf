"""`unfix adopt`: a toggle from a fix."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import paths
from harness.adopt import adopting, anchoring, patches, trying
from harness.adopt.adopting import Adopted, Change, Story
from harness.adopt.anchoring import Left
from harness.adopt.following import Known
from harness.adopt.patches import Patch
from harness.bisect.commits import open_repository
from harness.cli import drift, options
from harness.cli.parsing import Parser
from harness.drift import survey
from harness.errors import UnfixError, WrongCall
from harness.patching import diffs
from harness.registry import writing
from harness.registry.schema import Symptom, Toggle
from harness.releases import having, managed
from harness.releases.sources import SourceTree

if TYPE_CHECKING:
    from rich.console import Console

    from harness.adopt.asking import Answer

SYMPTOMS = [symptom.value for symptom in Symptom]
WHO = 8  # guards that are named


def add_arguments(parser: Parser) -> None:
    parser.usage = (
        "unfix adopt [FIX.diff | --repo DIR COMMIT | --between A B WORD …] --as ID [OPTIONS]"
    )
    parser.add_argument(
        "asked", nargs="*", metavar="FIX", help="a diff's file, or '-' for stdin; commits; words"
    )
    parser.add_argument("--as", dest="id", metavar="ID", help="the PR's number, or a slug")
    parser.add_argument("--title", help="what is wrong when the fix is out (default: the commit's)")
    parser.add_argument("--symptom", choices=SYMPTOMS, help="what the bug does")
    parser.add_argument("--family", help="the folder of its suites (default: its neighbours')")
    parser.add_argument("--why", default="", help="the story that `show` tells")
    parser.add_argument("--repo", type=Path, metavar="DIR", help="a checkout: FIX is A, or A..B")
    parser.add_argument(
        "--between", nargs=2, metavar=("A", "B"), help="two releases: FIX is what to look for"
    )
    parser.add_argument("--hunks", metavar="N,…", help="of what changed between them, these")
    parser.add_argument("--whole", action="store_true", help="one toggle, whatever it holds")
    parser.add_argument("--dry-run", action="store_true", help="show it and write nothing")
    parser.add_argument("--no-try", action="store_true", help="do not put it into a release")
    parser.add_argument("--no-ask", action="store_true", help="do not ask the suites who notices")
    parser.add_argument("--ask", action="store_true", help="FIX is toggles: ask the suites of them")
    parser.add_argument("--guard", metavar="ID", help="begin a guard for it, from a template")
    options.add_toggle_folders(parser)
    options.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    registry = options.catalogue(arguments)
    if arguments.guard:
        return _guard(registry.select(arguments.guard))
    if arguments.ask:
        return _ask(arguments, registry.select_all(arguments.asked))
    # What is asked is read before what has to be fetched for an answer.
    patch = None if arguments.between else _patch(arguments)
    trees = having.read(managed.all_releases(), options.say)
    if patch is None:
        changes, newer = _between(arguments, trees)
        if not arguments.hunks:
            return _list(arguments, changes)
        anchor = adopting.chosen(_picked(arguments, changes), newer)
    else:
        anchor = anchoring.anchor(patch, trees, patch.name)
    parts, left = adopting.parts(anchor, arguments.whole)
    story = _story(arguments, patch)
    names = [story.id if len(parts) == 1 else f"{story.id}-{part.name}" for part in parts]
    for name in names:
        if arguments.dry_run:
            writing.check_id(name)
        else:
            writing.check_free(name, registry)
    adopted = []
    for name, part in zip(names, parts, strict=True):
        options.say(f"following {name} from {anchor.tree.name} through {len(trees)} releases")
        adopted.append(adopting.adopt(part, anchor, replace(story, id=name), trees, registry))
    files = []
    if not arguments.dry_run:
        files = [writing.write(one.toggle, paths.toggles(), registry) for one in adopted]
    return _show(arguments, adopted, files, (*anchor.left, *left), trees)


# What is asked


def _patch(arguments: argparse.Namespace) -> Patch:
    if arguments.repo is not None:
        if not arguments.asked:
            raise WrongCall("--repo wants a commit, or a range A..B", arguments.usage)
        repository = open_repository(arguments.repo)
        texts = []
        for word in arguments.asked:
            older, dots, newer = word.partition("..")
            commit = repository.commit(newer.lstrip(".") if dots else word)
            base = repository.commit(older) if dots else repository.parent(commit)
            head = repository.git("show", "--no-patch", "--format=Subject: %s%n", commit)
            texts.append(f"{head}\n\n{repository.git('diff', '-M', base, commit)}\n")
        return patches.read("\n".join(texts), " ".join(arguments.asked))
    if len(arguments.asked) > 1:
        raise WrongCall("one diff is adopted at a time", arguments.usage)
    name = arguments.asked[0] if arguments.asked else "-"
    if name == "-":
        if sys.stdin.isatty():
            raise WrongCall("a diff is wanted: its file, or on stdin", arguments.usage)
        return patches.read(
            sys.stdin.buffer.read().decode("utf-8", "replace"), "what came on stdin"
        )
    if not Path(name).is_file():
        raise UnfixError(
            f"there is no file {name}: a fix is a diff's file, '-' for stdin, or commits of a "
            "checkout that --repo names"
        )
    return patches.read(Path(name).read_bytes().decode("utf-8", "replace"), name)


def _story(arguments: argparse.Namespace, patch: Patch | None) -> Story:
    numbers = patch.numbers if patch else ()
    name = arguments.id or (str(numbers[-1]) if numbers else "")
    title = arguments.title or (patch.title if patch else "")
    wanted = [
        ("--as", "a PR's number or a slug", name),
        ("--title", "what is wrong when the fix is out", title),
        ("--symptom", f"one of {', '.join(SYMPTOMS)}", arguments.symptom or ""),
    ]
    said = {}
    for option, what, value in wanted:
        if not value and sys.stdin.isatty() and not arguments.json:
            value = input(f"{option.removeprefix('--')} ({what}): ").strip()
        if not value:
            raise WrongCall(f"{option} is needed: {what}", arguments.usage)
        said[option] = value
    if said["--symptom"] not in SYMPTOMS:
        raise WrongCall(f"a symptom is one of {', '.join(SYMPTOMS)}", arguments.usage)
    number = said["--as"].partition("-")[0]
    upstream = dict.fromkeys([*([int(number)] if number.isdigit() else []), *numbers])
    return Story(
        id=said["--as"],
        title=said["--title"],
        symptom=Symptom(said["--symptom"]),
        family=arguments.family or "",
        upstream=tuple(upstream),
        why=arguments.why,
    )


def _between(
    arguments: argparse.Namespace, trees: Sequence[SourceTree]
) -> tuple[list[Change], SourceTree]:
    known = {str(tree.version): tree for tree in trees}
    for name in arguments.between:
        if name not in known:
            raise UnfixError(f"'{name}' is no managed release; there are {', '.join(known)}")
    older, newer = (known[name] for name in sorted(arguments.between, key=list(known).index))
    if not arguments.asked:
        raise WrongCall("--between wants words of a module or function to look in", arguments.usage)
    changes = adopting.between(older, newer, arguments.asked)
    if not changes:
        raise UnfixError(
            f"nothing called {' '.join(arguments.asked)} changed between {older.name} and "
            f"{newer.name}, where both have it"
        )
    return changes, newer


def _picked(arguments: argparse.Namespace, changes: Sequence[Change]) -> list[Change]:
    picked = []
    for word in arguments.hunks.split(","):
        if not word.strip().isdigit() or not 1 <= int(word) <= len(changes):
            raise UnfixError(f"--hunks: '{word}' is none of the {len(changes)} that changed there")
        picked.append(changes[int(word) - 1])
    return picked


# What is shown


def _list(arguments: argparse.Namespace, changes: Sequence[Change]) -> int:
    if arguments.json:
        options.print_json(
            [
                {"hunk": n, "module": c.module, "name": c.name, "diff": adopting.diff_of(c.place)}
                for n, c in enumerate(changes, 1)
            ]
        )
        return 0
    from rich.text import Text

    out = options.console()
    for number, change in enumerate(changes, 1):
        out.print(Text(f"{number}  {change.module}:{change.name}", style="bold"), soft_wrap=True)
        options.print_diff(out, adopting.diff_of(change.place))
    words = " ".join([*arguments.between, *arguments.asked])
    out.print(f"\nchoose: unfix adopt --between {words} --hunks N,… --as ID")
    return 0


def _show(
    arguments: argparse.Namespace,
    adopted: Sequence[Adopted],
    files: Sequence[Path],
    left: Sequence[Left],
    trees: Sequence[SourceTree],
) -> int:
    tried: dict[str, str] = {}
    if files and not arguments.no_try:
        options.say("trying it in a release")
        courses = {one.toggle.id: one.course for one in adopted}
        tried = trying.live(courses, managed.all_releases())
    asked = (
        _asked_of(arguments, [one.toggle for one in adopted])
        if files and not arguments.no_ask
        else {}
    )
    found = survey([one.toggle for one in adopted], list(trees), named=True)
    if arguments.json:
        who = {name: asdict(answer) for name, answer in asked.items()}
        told = _as_data(adopted, files, left, tried)
        options.print_json(told | {"drift": found.as_data(), "asked": who})
        return 1 if found.stale else 0
    from rich.text import Text

    out = options.console()
    for one in adopted:
        newest = one.course.held[-1]
        finding = next(
            f for c in found.columns if c.name == newest.tree.name
            for f in c.findings if f.toggle.id == one.toggle.id
        )  # fmt: skip
        out.print(Text.assemble((one.toggle.id, "bold"), "  ", one.toggle.title))
        out.print(f"on SGLang {newest.tree.version}: {finding.state.value}; toggling does this:")
        options.print_diff(out, diffs.of(finding, newest.tree))
        for tree, cell in one.course.cells:
            how = cell if isinstance(cell, str) else "; ".join(cell.how)
            if how:
                out.print(f"  {tree.name}: {how}", style="dim", soft_wrap=True)
        if one.toggle.id in tried:
            out.print(f"tried {tried[one.toggle.id]}", soft_wrap=True)
        out.print()
    for other in left:
        out.print(f"left out: {other.what} ({other.why})", style="dim", soft_wrap=True)
    drift.show(found, out)
    for file in files:
        out.print(f"written: {file}")
    for one in adopted if files and not arguments.no_ask else ():
        _say_who(out, one.toggle.id, asked.get(one.toggle.id))
    names = " ".join(one.toggle.id for one in adopted)
    if files:
        out.print(
            f"next: hold the states against the pull request, put them into tests/history.yaml, "
            f"write a guard (CONTRIBUTING), and `unfix prove {names}`"
        )
    return 1 if found.stale else 0


# What the suites say


def _asked_of(arguments: argparse.Namespace, toggles: Sequence[Toggle]) -> dict[str, Answer]:
    """Each toggle's answer on the newest installed release that has its code."""
    from harness.adopt import asking
    from harness.prove.plan import Target

    suites, jobs = paths.project() / "suites", len(os.sched_getaffinity(0))
    said: dict[str, Answer] = {}
    for release in reversed([one for one in managed.all_releases() if one.installed]):
        left = [toggle for toggle in toggles if toggle.id not in said]
        if left:
            target = Target(release.name, release.python, release.sources(), release.name)
            said |= asking.ask(left, target, suites, arguments.toggles, jobs, options.say)
    return said


def _ask(arguments: argparse.Namespace, toggles: Sequence[Toggle]) -> int:
    if not arguments.asked:
        raise WrongCall("--ask wants toggles: ids, families or globs", arguments.usage)
    said = _asked_of(arguments, toggles)
    if arguments.json:
        options.print_json({name: asdict(answer) for name, answer in said.items()})
    else:
        for toggle in toggles:
            _say_who(options.console(), toggle.id, said.get(toggle.id))
    return 0 if all(t.id in said and said[t.id].notices for t in toggles) else 1


def _say_who(out: Console, name: str, answer: Answer | None) -> None:
    from rich.text import Text

    if answer is None:
        out.print(Text(f"{name}: no release that has its code is installed: nobody was asked"))
        return
    where = f"of {answer.asked} guards on SGLang {answer.release}"
    if answer.notices:
        out.print(Text(f"{name}: {len(answer.notices)} {where} notice:", style="green"))
        guards = answer.notices
    elif answer.runs:
        out.print(Text(f"{name}: nobody notices; its code is run by {len(answer.runs)} {where}:"))
        guards = answer.runs
    else:
        out.print(Text(f"{name}: nobody notices, and none {where} runs its code"))
        guards = ()
    for guard in guards[:WHO]:
        out.print(Text(f"  {guard}"), soft_wrap=True)
    if len(guards) > WHO:
        out.print(f"  and {len(guards) - WHO} more")
    if not answer.notices:
        out.print(f"a guard begins with: unfix adopt --guard {name}")


def _guard(toggles: Sequence[Toggle]) -> int:
    from harness.adopt import beginning

    if len(toggles) != 1:
        names = ", ".join(toggle.id for toggle in toggles)
        raise UnfixError(f"a guard is begun for one toggle at a time: {names}")
    (toggle,) = toggles
    trees = [one.sources() for one in managed.all_releases() if one.installed]
    options.console().print(f"written: {beginning.guard(toggle, trees)}")
    return 0


def _as_data(
    adopted: Sequence[Adopted], files: Sequence[Path], left: Sequence[Left], tried: dict[str, str]
) -> dict[str, Any]:
    return {
        "toggles": [
            {
                "id": one.toggle.id,
                "states": {
                    tree.name: cell.state.value if isinstance(cell, Known) else "absent"
                    for tree, cell in one.course.cells
                },
                "how": {
                    tree.name: list(cell.how) if isinstance(cell, Known) else [cell]
                    for tree, cell in one.course.cells
                },
                "yaml": writing.as_yaml(one.toggle),
                "tried": tried.get(one.toggle.id, ""),
            }
            for one in adopted
        ],
        "left_out": [{"what": one.what, "why": one.why} for one in left],
        "files": [str(file) for file in files],
    }
