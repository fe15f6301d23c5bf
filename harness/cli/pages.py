"""What is shown and written of a run: by `prove` and `lifecycle` as they end, by `report` again."""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import paths
from harness.cli import options

if TYPE_CHECKING:
    from harness.store.prove.values import Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--junit", type=Path, metavar="FILE", help="JUnit XML for a CI system")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="for a job's summary")
    parser.add_argument("--html", type=Path, metavar="FILE", help="the page, in one file")
    parser.add_argument("--record", type=Path, metavar="FILE", help="all of it as JSON, to keep")


def find_reports() -> None:
    """The package `reports` lies beside the toggles, in a checkout and in a wheel."""
    place = str(paths.project())
    if place not in sys.path:
        sys.path.append(place)


def show(runs: list[Run]) -> None:
    find_reports()
    from reports.prove import terminal

    for run in runs:
        terminal.show(run, options.console())


def default_page() -> Path:
    return paths.workspace() / "reports" / "out" / "index.html"


def write(runs: list[Run], arguments: argparse.Namespace) -> None:
    """The files that were asked for, and the page in any case."""
    find_reports()
    from reports.prove import junit, markdown, page

    html = arguments.html or default_page()
    for file in (html, arguments.junit, arguments.markdown, arguments.record):
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
    page.write(runs, html)
    options.say(f"the page: {html}")
    if arguments.junit:
        junit.write(runs, arguments.junit)
    if arguments.markdown:
        arguments.markdown.write_text(markdown.text(runs))
    if arguments.record:
        arguments.record.write_text(record(runs))


def write_one(
    arguments: argparse.Namespace,
    default: Path,
    page: Callable[[Path], None],
    markdown: Callable[[], str],
    data: Callable[[], Any],
) -> None:
    """The files that were asked for of one result, and its page in any case."""
    html = arguments.html or default
    html.parent.mkdir(parents=True, exist_ok=True)
    page(html)
    options.say(f"the page: {html}")
    if arguments.markdown:
        _save(arguments.markdown, markdown())
    if arguments.record:
        text = json.dumps(data(), indent=1, ensure_ascii=False)
        _save(arguments.record, without_places(text) + "\n")


def _save(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode(errors="backslashreplace")
    file.write_bytes(gzip.compress(data, mtime=0) if file.suffix == ".gz" else data)


def as_data(run: Run) -> dict[str, Any]:
    """A run as plain data, with what it comes to."""
    import msgspec

    data: dict[str, Any] = msgspec.to_builtins(run)
    return {**data, "counts": run.counts, "green": run.green, "problems": run.problems}


def record(runs: list[Run]) -> str:
    """Runs for the tree."""
    data = [as_data(run) for run in runs]
    text = json.dumps(data[0] if len(data) == 1 else data, indent=1, ensure_ascii=False)
    return without_places(text) + "\n"


_OUTPUTS = ("--html", "--junit", "--markdown", "--record")


def asked(words: Sequence[str]) -> list[str]:
    """A command line without the files it was to write: they are none of what was run."""
    kept: list[str] = []
    left = iter(words)
    for word in left:
        if word in _OUTPUTS:
            next(left, None)
        elif not word.startswith(tuple(f"{name}=" for name in _OUTPUTS)):
            kept.append(word)
    return kept


def without_places(text: str) -> str:
    """Where the project lies on that machine is nobody's business in a recorded result."""
    for place, name in ((paths.project(), "."), (Path(sys.prefix), "PREFIX"), (Path.home(), "~")):
        if place != Path("/"):
            text = text.replace(str(place), name)
    return text
