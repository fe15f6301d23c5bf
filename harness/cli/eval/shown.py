"""What is shown and written of an evaluation, as it ends and by `report` again."""

from __future__ import annotations

import argparse
import datetime
import math
from pathlib import Path
from typing import Any

import msgspec

from harness import paths
from harness.cli import options, pages
from harness.errors import UnfixError
from harness.store.eval.table import Listed
from harness.store.eval.values import Evaluation


def default_page(evaluation: Evaluation) -> Path:
    """One for each evaluation: the next one does not replace what somebody has open."""
    return paths.workspace() / "reports" / "out" / f"{evaluation.identity}.html"


def check(arguments: argparse.Namespace) -> None:
    """Before anything is served: what is asked for in vain is said at once."""
    if arguments.junit is not None:
        raise UnfixError("an evaluation has no JUnit: there are --markdown, --record and --json")


def write(evaluation: Evaluation, arguments: argparse.Namespace) -> None:
    """The files that were asked for, and the page in any case."""
    pages.find_reports()
    from reports.eval import markdown, page

    pages.write_one(
        arguments,
        default_page(evaluation),
        lambda file: page.write(evaluation, file),
        lambda: markdown.text(evaluation),
        lambda: _short(to_json(evaluation)),
    )


def show(evaluation: Evaluation, arguments: argparse.Namespace) -> None:
    if arguments.json:
        options.print_json(to_json(evaluation))
        return
    pages.find_reports()
    from reports.eval import terminal

    terminal.show(evaluation, options.console())


def to_json(evaluation: Evaluation) -> dict[str, Any]:
    """All of it, with what it comes to, as JSON that any reader takes."""
    data = _strict(msgspec.to_builtins(evaluation))
    return {**data, "green": evaluation.green, "problems": _strict(evaluation.problems)}


def as_listed(one: Listed) -> dict[str, Any]:
    """One line of `report --list`."""
    started = datetime.datetime.fromtimestamp(one.started, datetime.UTC)
    said = [f"{count} {verdict}" for verdict, count in one.counts.items()] or ["no comparisons"]
    said += [f"{one.caught} of {one.faults} faults caught"] if one.faults else []
    data = {
        "id": one.identity,
        "kind": "eval",
        "name": one.name,
        "started": started.isoformat(timespec="seconds"),
        "status": one.state,
        "seconds": one.seconds,
        "counts": one.counts,
        "green": one.green,
        "summary": f"{one.name}: {', '.join(said)}",
        "command": one.command,
    }
    plain: dict[str, Any] = _strict(data)
    return plain


def _strict(value: Any) -> Any:
    """JSON knows no infinities, and a terminal no half characters."""
    if isinstance(value, dict):
        return {_strict(name): _strict(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_strict(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    return value


def _short(value: Any) -> Any:
    """Six digits of each number: a record is kept, and no verdict hangs on the seventh."""
    if isinstance(value, dict):
        return {name: _short(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_short(one) for one in value]
    if isinstance(value, float) and abs(value) < 1e6:
        return float(f"{value:.6g}")
    return value
