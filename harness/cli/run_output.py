"""What is shown and written of a run, of whatever kind: as it ends, and by `report` again."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.cli import options
from harness.cli.run_kinds import RunKind
from harness.core import paths
from harness.core.errors import UnfixError


def add_arguments(parser: argparse.ArgumentParser, junit: bool = True) -> None:
    if junit:
        parser.add_argument("--junit", type=Path, metavar="FILE", help="JUnit XML for a CI system")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="for a job's summary")
    parser.add_argument("--html", type=Path, metavar="FILE", help="the page, in one file")
    parser.add_argument("--record", type=Path, metavar="FILE", help="all of it as JSON, to keep")


def check_outputs(kind: RunKind, arguments: argparse.Namespace) -> None:
    """Before anything runs: what is asked for in vain is said at once."""
    if getattr(arguments, "junit", None) is not None and not kind.junit:
        raise UnfixError(
            f"{kind.noun} has no JUnit: there are --html, --markdown, --record and --json"
        )


def write_and_print_run(kind: RunKind, runs: Any, arguments: argparse.Namespace) -> int:
    """The page and the files that were asked for, the run as it is shown; gives the exit code.

    Several proofs are one page; of the other kinds a run is shown by itself.
    """
    check_outputs(kind, arguments)
    several = runs if isinstance(runs, list) else [runs]
    data = [kind.to_json(run) for run in several]
    whole: Any = data[0] if len(data) == 1 else data
    write_outputs(
        arguments,
        get_default_page(kind.make_page_name(several[0])),
        lambda: str(kind.import_report("page").render_page(runs)),
        lambda: str(kind.import_report("markdown").render_markdown(runs)),
        whole,
    )
    if getattr(arguments, "junit", None) is not None:
        kind.import_report("junit").write_junit(runs, arguments.junit)
    if arguments.json:
        options.print_json(whole)
    else:
        for run in several:
            kind.import_report("terminal").print_run(run, options.make_console())
    return max(kind.get_exit_code(run) for run in several)


def get_default_page(name: str) -> Path:
    return paths.workspace_folder() / "reports" / "out" / f"{name}.html"


def write_outputs(
    arguments: argparse.Namespace,
    default: Path,
    page: Callable[[], str],
    markdown: Callable[[], str],
    data: Any,
) -> None:
    """The files that were asked for, and the page in any case."""
    html = arguments.html or default
    save_text(html, page())
    options.report_status(f"the page: {html}")
    if arguments.markdown:
        text = markdown()
        if str(arguments.markdown) == os.environ.get("GITHUB_STEP_SUMMARY"):
            # A job's summary belongs to all commands of its step.
            before = arguments.markdown
            text = (before.read_text() if before.exists() else "") + text
        save_text(arguments.markdown, text)
    if arguments.record:
        text = json.dumps(_round_numbers(data), indent=1, ensure_ascii=False)
        save_text(arguments.record, hide_local_paths(text) + "\n")


def save_text(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode(errors="backslashreplace")
    file.write_bytes(gzip.compress(data, mtime=0) if file.suffix == ".gz" else data)


def _round_numbers(value: Any) -> Any:
    """Six digits of each number: a record is kept, and no verdict hangs on the seventh."""
    if isinstance(value, dict):
        return {name: _round_numbers(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_round_numbers(one) for one in value]
    if isinstance(value, float) and abs(value) < 1e6:
        return float(f"{value:.6g}")
    return value


_OUTPUT_OPTIONS = ("--html", "--junit", "--markdown", "--record")


def strip_output_options(words: Sequence[str]) -> list[str]:
    """A command line without the files it was to write: they are none of what was run.

    What stands behind `--` is another's.
    """
    kept: list[str] = []
    left = iter(words)
    for word in left:
        if word == "--":
            return [*kept, word, *left]
        if word in _OUTPUT_OPTIONS:
            next(left, None)
        elif not word.startswith(tuple(f"{name}=" for name in _OUTPUT_OPTIONS)):
            kept.append(word)
    return kept


def get_recorded_command() -> list[str]:
    """This one, as results keep it."""
    return ["unfix", *strip_output_options(sys.argv[1:])]


def hide_local_paths(text: str) -> str:
    """Where the project lies on that machine is nobody's business in a recorded result."""
    places = (
        (paths.workspace_folder(), "."),
        (paths.project_folder(), "."),
        (Path(sys.prefix), "PREFIX"),
    )
    for place, name in (*places, (Path.home(), "~")):
        if place != Path("/"):
            text = text.replace(str(place), name)
    return text
