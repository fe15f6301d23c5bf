"""`unfix adopt`: writes a toggle from a fix."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli import drift, options
from harness.cli.adopt import output
from harness.cli.command_parser import CommandParser
from harness.cli.progress_display import ProgressBars
from harness.core import paths
from harness.core.errors import CommandLineError, UnfixError
from harness.core.git_repository import open_repository
from harness.core.wording import format_count
from harness.fixes.adopt import anchors, fix_diff, fix_parts
from harness.fixes.adopt.anchors import LeftOutChange
from harness.fixes.adopt.fix_diff import FixDiff
from harness.fixes.adopt.fix_parts import AdoptedToggle, FixDescription, ReleaseChange
from harness.fixes.drift import survey_drift
from harness.fixes.registry import toggle_writer
from harness.fixes.registry.schema import Symptom, Toggle
from harness.releases import managed_releases, provisioning
from harness.releases.source_trees import SourceTree
from harness.runs.adopt import live_check

if TYPE_CHECKING:
    from harness.runs.adopt.detection import DetectionReport

MAX_GUARD_SECONDS = 30.0  # of the guards of a new toggle; `--ask` runs all of them
SYMPTOMS = [symptom.value for symptom in Symptom]


@dataclass(frozen=True)
class AdoptRequest:
    """The arguments of `unfix adopt`; `fix` is a diff's file, commits, or words to search for."""

    fix: list[str]
    id: str | None
    title: str | None
    symptom: str | None
    family: str | None
    why: str
    repo: Path | None
    between: list[str] | None
    hunks: str | None
    whole: bool
    dry_run: bool
    try_live: bool
    ask_suites: bool
    toggles: list[Path]
    json: bool
    usage: str


def add_arguments(parser: CommandParser) -> None:
    parser.usage = (
        "unfix adopt [FIX.diff | --repo DIR COMMIT | --between A B WORD …] --as ID [OPTIONS]"
    )
    parser.add_argument(
        "fix", nargs="*", metavar="FIX", help="a diff's file, or '-' for stdin; commits; words"
    )
    parser.add_argument("--as", dest="id", metavar="ID", help="the PR's number, or a slug")
    parser.add_argument("--title", help="the bug without the fix (default: the commit's title)")
    parser.add_argument("--symptom", choices=SYMPTOMS, help="what the bug does")
    parser.add_argument("--family", help="the folder of its suites (default: its neighbours')")
    parser.add_argument("--why", default="", help="the story that `show` prints")
    parser.add_argument("--repo", type=Path, metavar="DIR", help="a checkout: FIX is A, or A..B")
    parser.add_argument(
        "--between", nargs=2, metavar=("A", "B"), help="two releases: FIX is what to look for"
    )
    parser.add_argument("--hunks", metavar="N,…", help="of the changes between them, these")
    parser.add_argument("--whole", action="store_true", help="one toggle for the whole fix")
    parser.add_argument("--dry-run", action="store_true", help="show it and write nothing")
    parser.add_argument(
        "--no-try", dest="try_live", action="store_false", help="do not apply it to a release"
    )
    parser.add_argument(
        "--no-ask", dest="ask_suites", action="store_false", help="do not run the suites under it"
    )
    parser.add_argument(
        "--ask", action="store_true", help="FIX is toggles: run the suites under them"
    )
    parser.add_argument("--guard", metavar="ID", help="begin a guard for it, from a template")
    options.add_toggle_folders(parser)
    options.add_json(parser)


def run_command(arguments: argparse.Namespace) -> int:
    registry = options.load_catalogue(arguments)
    request = options.make_request(AdoptRequest, arguments)
    if arguments.guard:
        return _start_guard(registry.select(arguments.guard))
    if arguments.ask:
        return _run_suites(request, registry.select_all(request.fix))
    # Refuse a wrong call before any download.
    patch = None if request.between else _read_patch(request)
    releases = managed_releases.list_releases()
    if request.between and not request.hunks:  # the other releases are for the toggle
        ends = [one for one in releases if one.name in request.between]
        releases = ends if len(ends) == len(set(request.between)) else releases
    trees = provisioning.ensure_sources(releases, options.report_status)
    if patch is None:
        changes, newer = _list_changes_between(request, trees)
        if not request.hunks:
            search = " ".join([*(request.between or ()), *request.fix])
            output.print_changes(changes, search, request.json)
            return 0
        anchor = fix_parts.make_anchor_from_changes(_pick_changes(request.hunks, changes), newer)
    else:
        anchor = anchors.find_anchor(patch, trees, patch.name)
    parts, omitted = fix_parts.split_fix(anchor, request.whole)
    story = _make_story(request, patch)
    names = [story.id if len(parts) == 1 else f"{story.id}-{part.name}" for part in parts]
    for name in names:
        if request.dry_run:
            toggle_writer.check_id(name)
        else:
            toggle_writer.check_unused_id(name, registry)
    adopted = []
    for name, part in zip(names, parts, strict=True):
        count = format_count(len(trees), "release")
        what = f"following {name} from {anchor.tree.name} through {count}"
        options.report_status(what)
        told = replace(story, id=name)
        with _show_progress(what, len(trees)) as report:
            adopted.append(fix_parts.adopt_part(part, anchor, told, trees, registry, report))
    files = []
    if not request.dry_run:
        files = [
            toggle_writer.write_toggle_file(adoption.toggle, _get_folder(request), registry)
            for adoption in adopted
        ]
    return _report_adopted(request, adopted, files, (*anchor.left_out, *omitted), trees)


@contextlib.contextmanager
def _show_progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show how far the block is; it says how much is done."""
    with ProgressBars() as progress:
        task = progress.bar.add_task(what, total=total)
        yield lambda done: progress.bar.update(task, completed=done)


def _get_folder(request: AdoptRequest) -> Path:
    """Return the folder of new toggles: the last that the call gives, or this project's."""
    return request.toggles[-1] if request.toggles else paths.toggles_folder()


def _format_folders(request: AdoptRequest) -> str:
    """Format the options that find the new toggles in the next command."""
    return "".join(f" --toggles {shlex.quote(str(folder))}" for folder in request.toggles or ())


def _read_patch(request: AdoptRequest) -> FixDiff:
    if request.repo is not None:
        if not request.fix:
            raise CommandLineError("--repo needs a commit, or a range A..B", request.usage)
        repository = open_repository(request.repo)
        texts = []
        for word in request.fix:
            older, dots, newer = word.partition("..")
            commit = repository.resolve_commit(newer.lstrip(".") if dots else word)
            base = repository.resolve_commit(older) if dots else repository.find_parent(commit)
            head = repository.run_git("show", "--no-patch", "--format=Subject: %s%n", commit)
            texts.append(f"{head}\n\n{repository.run_git('diff', '-M', base, commit)}\n")
        return fix_diff.parse_diff("\n".join(texts), " ".join(request.fix))
    if len(request.fix) > 1:
        raise CommandLineError("one diff is adopted at a time", request.usage)
    name = request.fix[0] if request.fix else "-"
    if name == "-":
        if sys.stdin.isatty():
            raise CommandLineError("adopt needs a diff: its file, or on stdin", request.usage)
        return fix_diff.parse_diff(sys.stdin.buffer.read().decode("utf-8", "replace"), "stdin")
    if not Path(name).is_file():
        raise UnfixError(
            f"there is no file {name}: a fix is a diff's file, '-' for stdin, or commits of a "
            "checkout that --repo names"
        )
    return fix_diff.parse_diff(Path(name).read_bytes().decode("utf-8", "replace"), name)


def _make_story(request: AdoptRequest, patch: FixDiff | None) -> FixDescription:
    numbers = patch.pull_requests if patch else ()
    name = request.id or (str(numbers[-1]) if numbers else "")
    title = request.title or (patch.title if patch else "")
    wanted = [
        ("--as", "a PR's number or a slug", name),
        ("--title", "the bug without the fix", title),
        ("--symptom", f"one of {', '.join(SYMPTOMS)}", request.symptom or ""),
    ]
    values = []
    for option, meaning, value in wanted:
        if not value and sys.stdin.isatty() and not request.json:
            value = input(f"{option.removeprefix('--')} ({meaning}): ").strip()
        if not value:
            raise CommandLineError(f"{option} is needed: {meaning}", request.usage)
        values.append(value)
    name, title, symptom = values
    if symptom not in SYMPTOMS:
        raise CommandLineError(f"a symptom is one of {', '.join(SYMPTOMS)}", request.usage)
    number = name.partition("-")[0]
    upstream = dict.fromkeys([*([int(number)] if number.isdigit() else []), *numbers])
    return FixDescription(
        id=name,
        title=title,
        symptom=Symptom(symptom),
        family=request.family or "",
        upstream=tuple(upstream),
        why=request.why,
    )


def _list_changes_between(
    request: AdoptRequest, trees: Sequence[SourceTree]
) -> tuple[list[ReleaseChange], SourceTree]:
    known = {str(tree.version): tree for tree in trees}
    ends = request.between or []
    for name in ends:
        if name not in known:
            raise UnfixError(f"'{name}' is no managed release; there are {', '.join(known)}")
    older, newer = (known[name] for name in sorted(ends, key=list(known).index))
    if not request.fix:
        raise CommandLineError(
            "--between needs words of a module or function to look in", request.usage
        )
    count = sum(1 for _ in newer.modules())
    with _show_progress(f"comparing {older.name} with {newer.name}", count) as report:
        changes = fix_parts.find_release_changes(older, newer, request.fix, report)
    if not changes:
        raise UnfixError(
            f"nothing called {' '.join(request.fix)} changed between {older.name} and "
            f"{newer.name}, where both have it"
        )
    return changes, newer


def _pick_changes(hunks: str, changes: Sequence[ReleaseChange]) -> list[ReleaseChange]:
    picked = []
    for word in hunks.split(","):
        if not word.strip().isdigit() or not 1 <= int(word) <= len(changes):
            raise UnfixError(f"--hunks: '{word}' is none of the {len(changes)} changes there")
        picked.append(changes[int(word) - 1])
    return picked


def _report_adopted(
    request: AdoptRequest,
    adopted: Sequence[AdoptedToggle],
    files: Sequence[Path],
    omitted: Sequence[LeftOutChange],
    trees: Sequence[SourceTree],
) -> int:
    """Try the new toggles live, run the suites under them, and print the results."""
    toggles = [adoption.toggle for adoption in adopted]
    trials: dict[str, str] = {}
    if files and request.try_live:
        names = ", ".join(toggle.id for toggle in toggles)
        what = f"applying {names} in a process that imports SGLang, 10 s or more"
        options.report_status(what)
        timelines = {adoption.toggle.id: adoption.timeline for adoption in adopted}
        with _show_progress(what, None):
            trials = live_check.check_toggles_live(
                timelines, managed_releases.list_releases(), request.toggles
            )
    detections = None
    if files and request.ask_suites:
        detections = _find_detecting_guards(request, toggles, MAX_GUARD_SECONDS)
    survey = survey_drift(toggles, list(trees), only_named=True)
    exit_code = 1 if survey.stale_count else 0
    if request.json:
        answers = {name: asdict(report) for name, report in (detections or {}).items()}
        data = output.adopted_to_json(adopted, files, omitted, trials)
        options.print_json(data | {"drift": survey.as_data(), "asked": answers})
        return exit_code
    out = options.make_console()
    folders = _format_folders(request)
    for adoption in adopted:
        output.print_adopted(adoption, survey, trials.get(adoption.toggle.id), out)
    for change in omitted:
        out.print(f"left out: {change.change} ({change.reason})", style="dim", soft_wrap=True)
    drift.print_drift(survey, out)
    for file in files:
        out.print(f"written: {file}")
    if detections is not None:
        for toggle in toggles:
            output.print_detection(out, toggle.id, detections.get(toggle.id), folders)
    if files:
        names = " ".join(toggle.id for toggle in toggles)
        history = "" if folders else " put them into tests/history.yaml,"
        out.print(
            f"next: compare the states with the pull request,{history} write a guard "
            f"(CONTRIBUTING), and `unfix prove {names}{folders}`"
        )
    return exit_code


def _find_detecting_guards(
    request: AdoptRequest, toggles: Sequence[Toggle], seconds: float = math.inf
) -> dict[str, DetectionReport]:
    """Find each toggle's detecting guards, on the newest installed release with its code."""
    from harness.runs.adopt import detection
    from harness.workers.release_target import ReleaseTarget

    suites, jobs = paths.project_folder() / "suites", len(os.sched_getaffinity(0))
    reports: dict[str, DetectionReport] = {}
    with ProgressBars() as progress:
        task = progress.bar.add_task("", total=None)

        def show(what: str, done: int, total: int) -> None:
            progress.bar.update(task, description=what, completed=done, total=total or None)

        for release in reversed(managed_releases.list_releases()):
            rest = [toggle for toggle in toggles if toggle.id not in reports]
            if not (rest and release.is_installed):
                continue
            target = ReleaseTarget(
                release.name, release.python, release.open_sources(), release.name
            )
            reports |= detection.find_detecting_guards(
                rest, target, suites, request.toggles, jobs, show, seconds
            )
    return reports


def _run_suites(request: AdoptRequest, toggles: Sequence[Toggle]) -> int:
    if not request.fix:
        raise CommandLineError("--ask needs toggles: ids, families or globs", request.usage)
    reports = _find_detecting_guards(request, toggles)
    if request.json:
        options.print_json({name: asdict(report) for name, report in reports.items()})
    else:
        for toggle in toggles:
            out, folders = options.make_console(), _format_folders(request)
            output.print_detection(out, toggle.id, reports.get(toggle.id), folders)
    return 0 if all(t.id in reports and reports[t.id].notices for t in toggles) else 1


def _start_guard(toggles: Sequence[Toggle]) -> int:
    from harness.fixes.adopt import guard_template

    if len(toggles) != 1:
        names = ", ".join(toggle.id for toggle in toggles)
        raise UnfixError(f"a guard is begun for one toggle at a time, not for {names}")
    (toggle,) = toggles
    trees = [
        release.open_sources()
        for release in managed_releases.list_releases()
        if release.is_installed
    ]
    options.make_console().print(f"written: {guard_template.write_guard(toggle, trees)}")
    return 0
