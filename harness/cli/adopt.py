"""`unfix adopt`: a toggle from a fix."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli import drift, options
from harness.cli.command_parser import CommandParser
from harness.core import paths
from harness.core.errors import CommandLineError, UnfixError
from harness.fixes.adopt import anchors, fix_diff, fix_parts, live_check
from harness.fixes.adopt.anchors import LeftOutChange
from harness.fixes.adopt.edit_porting import ResolvedEdits
from harness.fixes.adopt.fix_diff import FixDiff
from harness.fixes.adopt.fix_parts import AdoptedToggle, FixDescription, ReleaseChange
from harness.fixes.drift import survey_drift
from harness.fixes.registry import toggle_writer
from harness.fixes.registry.schema import Symptom, Toggle
from harness.patching import diffs
from harness.releases import managed_releases, provisioning
from harness.releases.source_trees import SourceTree
from harness.runs.bisect.commit_bisection import open_repository

if TYPE_CHECKING:
    from rich.console import Console

    from harness.runs.adopt.detection import DetectionReport

SYMPTOMS = [symptom.value for symptom in Symptom]
MAX_NAMED_GUARDS = 8  # guards that are named


def add_arguments(parser: CommandParser) -> None:
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


def run_command(arguments: argparse.Namespace) -> int:
    registry = options.load_catalogue(arguments)
    if arguments.guard:
        return _start_guard(registry.select(arguments.guard))
    if arguments.ask:
        return _run_ask(arguments, registry.select_all(arguments.asked))
    # What is asked is read before what has to be fetched for an answer.
    patch = None if arguments.between else _read_patch(arguments)
    trees = provisioning.ensure_sources(managed_releases.list_releases(), options.report_status)
    if patch is None:
        changes, newer = _list_changes_between(arguments, trees)
        if not arguments.hunks:
            return _print_changes(arguments, changes)
        anchor = fix_parts.make_anchor_from_changes(_pick_changes(arguments, changes), newer)
    else:
        anchor = anchors.find_anchor(patch, trees, patch.name)
    parts, left = fix_parts.split_fix(anchor, arguments.whole)
    story = _make_story(arguments, patch)
    names = [story.id if len(parts) == 1 else f"{story.id}-{part.name}" for part in parts]
    for name in names:
        if arguments.dry_run:
            toggle_writer.check_id(name)
        else:
            toggle_writer.check_unused_id(name, registry)
    adopted = []
    for name, part in zip(names, parts, strict=True):
        options.report_status(
            f"following {name} from {anchor.tree.name} through {len(trees)} releases"
        )
        adopted.append(fix_parts.adopt_part(part, anchor, replace(story, id=name), trees, registry))
    files = []
    if not arguments.dry_run:
        files = [
            toggle_writer.write_toggle_file(one.toggle, paths.toggles_folder(), registry)
            for one in adopted
        ]
    return _print_adopted(arguments, adopted, files, (*anchor.left_out, *left), trees)


# What is asked


def _read_patch(arguments: argparse.Namespace) -> FixDiff:
    if arguments.repo is not None:
        if not arguments.asked:
            raise CommandLineError("--repo wants a commit, or a range A..B", arguments.usage)
        repository = open_repository(arguments.repo)
        texts = []
        for word in arguments.asked:
            older, dots, newer = word.partition("..")
            commit = repository.resolve_commit(newer.lstrip(".") if dots else word)
            base = repository.resolve_commit(older) if dots else repository.find_parent(commit)
            head = repository.run_git("show", "--no-patch", "--format=Subject: %s%n", commit)
            texts.append(f"{head}\n\n{repository.run_git('diff', '-M', base, commit)}\n")
        return fix_diff.parse_diff("\n".join(texts), " ".join(arguments.asked))
    if len(arguments.asked) > 1:
        raise CommandLineError("one diff is adopted at a time", arguments.usage)
    name = arguments.asked[0] if arguments.asked else "-"
    if name == "-":
        if sys.stdin.isatty():
            raise CommandLineError("a diff is wanted: its file, or on stdin", arguments.usage)
        return fix_diff.parse_diff(
            sys.stdin.buffer.read().decode("utf-8", "replace"), "what came on stdin"
        )
    if not Path(name).is_file():
        raise UnfixError(
            f"there is no file {name}: a fix is a diff's file, '-' for stdin, or commits of a "
            "checkout that --repo names"
        )
    return fix_diff.parse_diff(Path(name).read_bytes().decode("utf-8", "replace"), name)


def _make_story(arguments: argparse.Namespace, patch: FixDiff | None) -> FixDescription:
    numbers = patch.pull_requests if patch else ()
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
            raise CommandLineError(f"{option} is needed: {what}", arguments.usage)
        said[option] = value
    if said["--symptom"] not in SYMPTOMS:
        raise CommandLineError(f"a symptom is one of {', '.join(SYMPTOMS)}", arguments.usage)
    number = said["--as"].partition("-")[0]
    upstream = dict.fromkeys([*([int(number)] if number.isdigit() else []), *numbers])
    return FixDescription(
        id=said["--as"],
        title=said["--title"],
        symptom=Symptom(said["--symptom"]),
        family=arguments.family or "",
        upstream=tuple(upstream),
        why=arguments.why,
    )


def _list_changes_between(
    arguments: argparse.Namespace, trees: Sequence[SourceTree]
) -> tuple[list[ReleaseChange], SourceTree]:
    known = {str(tree.version): tree for tree in trees}
    for name in arguments.between:
        if name not in known:
            raise UnfixError(f"'{name}' is no managed release; there are {', '.join(known)}")
    older, newer = (known[name] for name in sorted(arguments.between, key=list(known).index))
    if not arguments.asked:
        raise CommandLineError(
            "--between wants words of a module or function to look in", arguments.usage
        )
    changes = fix_parts.find_release_changes(older, newer, arguments.asked)
    if not changes:
        raise UnfixError(
            f"nothing called {' '.join(arguments.asked)} changed between {older.name} and "
            f"{newer.name}, where both have it"
        )
    return changes, newer


def _pick_changes(
    arguments: argparse.Namespace, changes: Sequence[ReleaseChange]
) -> list[ReleaseChange]:
    picked = []
    for word in arguments.hunks.split(","):
        if not word.strip().isdigit() or not 1 <= int(word) <= len(changes):
            raise UnfixError(f"--hunks: '{word}' is none of the {len(changes)} that changed there")
        picked.append(changes[int(word) - 1])
    return picked


# What is shown


def _print_changes(arguments: argparse.Namespace, changes: Sequence[ReleaseChange]) -> int:
    if arguments.json:
        options.print_json(
            [
                {
                    "hunk": n,
                    "module": c.module,
                    "name": c.name,
                    "diff": fix_parts.render_difference(c.difference),
                }
                for n, c in enumerate(changes, 1)
            ]
        )
        return 0
    from rich.text import Text

    out = options.make_console()
    for number, change in enumerate(changes, 1):
        out.print(Text(f"{number}  {change.module}:{change.name}", style="bold"), soft_wrap=True)
        options.print_diff(out, fix_parts.render_difference(change.difference))
    words = " ".join([*arguments.between, *arguments.asked])
    out.print(f"\nchoose: unfix adopt --between {words} --hunks N,… --as ID")
    return 0


def _print_adopted(
    arguments: argparse.Namespace,
    adopted: Sequence[AdoptedToggle],
    files: Sequence[Path],
    omitted: Sequence[LeftOutChange],
    trees: Sequence[SourceTree],
) -> int:
    tried: dict[str, str] = {}
    if files and not arguments.no_try:
        options.report_status("trying it in a release")
        courses = {one.toggle.id: one.timeline for one in adopted}
        tried = live_check.check_toggles_live(courses, managed_releases.list_releases())
    asked = (
        _ask_suites(arguments, [one.toggle for one in adopted])
        if files and not arguments.no_ask
        else {}
    )
    found = survey_drift([one.toggle for one in adopted], list(trees), only_named=True)
    if arguments.json:
        who = {name: asdict(answer) for name, answer in asked.items()}
        told = _adopted_to_json(adopted, files, omitted, tried)
        options.print_json(told | {"drift": found.as_data(), "asked": who})
        return 1 if found.stale_count else 0
    from rich.text import Text

    out = options.make_console()
    for one in adopted:
        newest = one.timeline.resolved_edits[-1]
        finding = next(
            f for c in found.releases if c.name == newest.tree.name
            for f in c.statuses if f.toggle.id == one.toggle.id
        )  # fmt: skip
        out.print(Text.assemble((one.toggle.id, "bold"), "  ", one.toggle.title))
        out.print(f"on SGLang {newest.tree.version}: {finding.state.value}; toggling does this:")
        options.print_diff(out, diffs.format_toggle_diff(finding, newest.tree))
        for tree, cell in one.timeline.cells:
            how = cell if isinstance(cell, str) else "; ".join(cell.remarks)
            if how:
                out.print(f"  {tree.name}: {how}", style="dim", soft_wrap=True)
        if one.toggle.id in tried:
            out.print(f"tried {tried[one.toggle.id]}", soft_wrap=True)
        out.print()
    for other in omitted:
        out.print(f"left out: {other.change} ({other.reason})", style="dim", soft_wrap=True)
    drift.print_drift(found, out)
    for file in files:
        out.print(f"written: {file}")
    for one in adopted if files and not arguments.no_ask else ():
        _print_answer(out, one.toggle.id, asked.get(one.toggle.id))
    names = " ".join(one.toggle.id for one in adopted)
    if files:
        out.print(
            f"next: hold the states against the pull request, put them into tests/history.yaml, "
            f"write a guard (CONTRIBUTING), and `unfix prove {names}`"
        )
    return 1 if found.stale_count else 0


# What the suites say


def _ask_suites(
    arguments: argparse.Namespace, toggles: Sequence[Toggle]
) -> dict[str, DetectionReport]:
    """Each toggle's answer on the newest installed release that has its code."""
    from harness.runs.adopt import detection
    from harness.runs.prove.plan import ReleaseTarget

    suites, jobs = paths.project_folder() / "suites", len(os.sched_getaffinity(0))
    said: dict[str, DetectionReport] = {}
    for release in reversed([one for one in managed_releases.list_releases() if one.is_installed]):
        left = [toggle for toggle in toggles if toggle.id not in said]
        if left:
            target = ReleaseTarget(
                release.name, release.python, release.open_sources(), release.name
            )
            said |= detection.find_detecting_guards(
                left, target, suites, arguments.toggles, jobs, options.report_status
            )
    return said


def _run_ask(arguments: argparse.Namespace, toggles: Sequence[Toggle]) -> int:
    if not arguments.asked:
        raise CommandLineError("--ask wants toggles: ids, families or globs", arguments.usage)
    said = _ask_suites(arguments, toggles)
    if arguments.json:
        options.print_json({name: asdict(answer) for name, answer in said.items()})
    else:
        for toggle in toggles:
            _print_answer(options.make_console(), toggle.id, said.get(toggle.id))
    return 0 if all(t.id in said and said[t.id].notices for t in toggles) else 1


def _print_answer(out: Console, name: str, answer: DetectionReport | None) -> None:
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
    for guard in guards[:MAX_NAMED_GUARDS]:
        out.print(Text(f"  {guard}"), soft_wrap=True)
    if len(guards) > MAX_NAMED_GUARDS:
        out.print(f"  and {len(guards) - MAX_NAMED_GUARDS} more")
    if not answer.notices:
        out.print(f"a guard begins with: unfix adopt --guard {name}")


def _start_guard(toggles: Sequence[Toggle]) -> int:
    from harness.fixes.adopt import guard_template

    if len(toggles) != 1:
        names = ", ".join(toggle.id for toggle in toggles)
        raise UnfixError(f"a guard is begun for one toggle at a time: {names}")
    (toggle,) = toggles
    trees = [one.open_sources() for one in managed_releases.list_releases() if one.is_installed]
    options.make_console().print(f"written: {guard_template.write_guard(toggle, trees)}")
    return 0


def _adopted_to_json(
    adopted: Sequence[AdoptedToggle],
    files: Sequence[Path],
    omitted: Sequence[LeftOutChange],
    trial_results: dict[str, str],
) -> dict[str, Any]:
    return {
        "toggles": [
            {
                "id": one.toggle.id,
                "states": {
                    tree.name: cell.state.value if isinstance(cell, ResolvedEdits) else "absent"
                    for tree, cell in one.timeline.cells
                },
                "how": {
                    tree.name: list(cell.remarks) if isinstance(cell, ResolvedEdits) else [cell]
                    for tree, cell in one.timeline.cells
                },
                "yaml": toggle_writer.format_toggle(one.toggle),
                "tried": trial_results.get(one.toggle.id, ""),
            }
            for one in adopted
        ],
        "left_out": [{"what": one.change, "why": one.reason} for one in omitted],
        "files": [str(file) for file in files],
    }
