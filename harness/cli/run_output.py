"""The output of a run of any kind: at its end, and again by `report`."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli import options
from harness.cli.run_kinds import RunKind, format_started
from harness.core import paths
from harness.core.errors import UnfixError
from harness.core.files import write_atomically
from harness.core.outcomes import RunStatus
from harness.store.record_files import round_numbers, write_record

if TYPE_CHECKING:
    from reports.shared.page_facts import PageFacts


def add_arguments(parser: argparse.ArgumentParser, junit: bool = True) -> None:
    if junit:
        parser.add_argument("--junit", type=Path, metavar="FILE", help="JUnit XML for a CI system")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="for a job's summary")
    parser.add_argument("--html", type=Path, metavar="FILE", help="the page, in one file")
    parser.add_argument("--record", type=Path, metavar="FILE", help="all of it as JSON, to keep")


def check_outputs(kind: RunKind, arguments: argparse.Namespace) -> None:
    """Refuse an output that the kind does not have, before the run."""
    if getattr(arguments, "junit", None) is not None and not kind.has_junit:
        raise UnfixError(
            f"{kind.noun} has no JUnit: there are --html, --markdown, --record and --json"
        )
    if getattr(arguments, "sarif", None) is not None and not kind.has_sarif:
        raise UnfixError(f"{kind.noun} has no SARIF: `unfix pr` and `unfix audit` write it")


def write_and_print_run(kind: RunKind, runs: Any, arguments: argparse.Namespace) -> int:
    """Write the page and the requested files, print the run, and return the exit code.

    Several proofs share a page; a run of another kind has a page of its own.
    """
    check_outputs(kind, arguments)
    several = runs if isinstance(runs, list) else [runs]
    data = [kind.to_json(run) for run in several]
    reports = kind.load_reports()
    whole: Any = data[0] if len(data) == 1 else data
    write_outputs(
        arguments,
        get_default_page(kind.make_page_name(several[0])),
        lambda: reports.render_page(runs),
        lambda: reports.render_markdown(runs),
        whole,
        _make_facts(kind, several),
    )
    if reports.render_sarif and getattr(arguments, "sarif", None) is not None:
        save_text(arguments.sarif, reports.render_sarif(runs))
    if reports.write_junit and getattr(arguments, "junit", None) is not None:
        reports.write_junit(runs, arguments.junit)
    if arguments.json:
        options.print_json(whole)
    else:
        for run in several:
            reports.print_run(run, options.make_console())
    return max(kind.get_exit_code(run) for run in several)


def _make_facts(kind: RunKind, runs: Sequence[Any]) -> PageFacts:
    """Make the facts of a page; of several runs that share it, the worst verdict counts."""
    from reports.shared.page_facts import PageFacts

    worst = max(runs, key=kind.get_exit_code)
    is_red = kind.get_exit_code(worst) != 0
    verdict = kind.describe_verdict(worst)
    return PageFacts.make(verdict, is_red, format_started(worst), worst.command)


def finish_run(kind: RunKind, run: Any, arguments: argparse.Namespace, hint: str = "") -> int:
    """Show a run that has just ended; return its exit code, which is 130 if Ctrl-C stopped it."""
    code = write_and_print_run(kind, [run] if kind.name == "prove" else run, arguments)
    if run.status is RunStatus.FINISHED:
        return code
    if hint:
        options.report_status(f"stopped; {hint}")
    return 130


def get_default_page(name: str) -> Path:
    return paths.workspace_folder() / "reports" / "out" / f"{name}.html"


def write_outputs(
    arguments: argparse.Namespace,
    default: Path,
    page: Callable[[], str],
    markdown: Callable[[], str],
    data: Any,
    facts: PageFacts | None = None,
    is_red: bool | None = None,
) -> None:
    """Write the requested files, and the page in any case, with its facts for the index.

    Without `facts` the page is of this call: `is_red` is its verdict, None if it judges nothing.
    """
    from reports.shared.page_facts import PageFacts

    html = arguments.html or default
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    verdict = {None: "", True: "red", False: "green"}[is_red]
    facts = facts or PageFacts.make(verdict, bool(is_red), now, get_recorded_command())
    save_text(html, facts.add_to_page(page()))
    if not arguments.html:
        from reports import index

        index.write_index(html.parent, "*")
    options.report_status(f"the page: {html}")
    if arguments.markdown:
        text = markdown()
        if str(arguments.markdown) == os.environ.get("GITHUB_STEP_SUMMARY"):
            # All commands of a step write to the summary of the job.
            file = arguments.markdown
            text = (file.read_text() if file.exists() else "") + text
        save_text(arguments.markdown, text)
    if arguments.record:
        text = json.dumps(round_numbers(data), indent=1, ensure_ascii=False)
        write_record(arguments.record, hide_local_paths(text) + "\n")


def save_text(file: Path, text: str) -> None:
    write_atomically(file, text.encode(errors="backslashreplace"))


_OUTPUT_OPTIONS = ("--html", "--junit", "--markdown", "--record", "--sarif")


def strip_output_options(words: Sequence[str]) -> list[str]:
    """Remove the output files from a command line, except behind `--`: another program's words."""
    stripped: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            return [*stripped, word, *rest]
        if word in _OUTPUT_OPTIONS:
            next(rest, None)
        elif not word.startswith(tuple(f"{name}=" for name in _OUTPUT_OPTIONS)):
            stripped.append(word)
    return stripped


def get_recorded_command() -> list[str]:
    """Return this command line in the form of records."""
    return ["unfix", *strip_output_options(sys.argv[1:])]


def hide_local_paths(text: str) -> str:
    """Remove the machine's folders from a record."""
    folders = (
        (paths.workspace_folder(), "."),
        (paths.project_folder(), "."),
        (Path(sys.prefix), "PREFIX"),
        (Path.home(), "~"),
    )
    for folder, name in folders:
        if folder != Path("/"):
            text = text.replace(str(folder), name)
    return text
