"""`unfix report --since`: the nights of a store, as a table, a page, Markdown, issues and data."""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli import kinds, options, pages
from harness.errors import NotReady, UnfixError

if TYPE_CHECKING:
    from harness.history.costs import Prices
    from harness.history.values import History, Line
    from harness.store.database import Store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("over the nights")
    group.add_argument(
        "--since", metavar="TIME", help="what is new, known or mended: 30d, 12h, 2w, 2026-11-01"
    )
    group.add_argument(
        "--price",
        action="append",
        default=[],
        metavar="NAME=X",
        help="what an hour costs, as cpu=0.05 or h200=3.5",
    )
    group.add_argument(
        "--issues", type=Path, metavar="DIR", help="a text for an issue for each new failure"
    )
    group.add_argument(
        "--bisect", metavar="TIME", help="of --issues: search for the fix, for so long in all"
    )


def check(arguments: argparse.Namespace) -> None:
    """What goes together."""
    if arguments.since is None:
        for name in ("price", "issues", "bisect"):
            if getattr(arguments, name):
                raise UnfixError(f"--{name} is of a history: it goes with --since")
        return
    if arguments.runs or arguments.list or arguments.proofs:
        raise UnfixError("--since is about all runs of that time: name none, leave out --list")
    if arguments.junit is not None:
        raise UnfixError("a history has no JUnit: there are --html, --markdown and --json")
    if arguments.bisect and arguments.issues is None:
        raise UnfixError("--bisect searches for what --issues writes of: say where they go")


def run(arguments: argparse.Namespace, store: Store) -> int:
    from harness.history import costs, lines, window

    now = datetime.datetime.now(datetime.UTC)
    since = window.since(arguments.since, now)
    prices = costs.prices(arguments.price)
    budget = options.budget(arguments.bisect, "--bisect") if arguments.bisect else 0.0
    for other in arguments.merge:
        store.merge(other)
    history = lines.history(store, since, now)
    if not history.nights:
        notes = "".join(f"; {note}" for note in history.notes)
        raise NotReady(f"{store.file} holds no run since {since:%Y-%m-%d %H:%M} UTC{notes}")
    _write(history, prices, arguments)  # before the searches, which may be stopped
    issues = _issues(history, store, arguments.issues, budget) if arguments.issues else []
    if arguments.json:
        options.print_json(to_json(history, prices) | {"issues": [str(file) for file in issues]})
    else:
        kinds.find_reports()
        from reports.history import terminal

        terminal.show(history, prices, options.console())
    return 0 if history.green else 1


def _write(history: History, prices: Prices, arguments: argparse.Namespace) -> None:
    kinds.find_reports()
    from reports.history import markdown, page

    pages.write(
        arguments,
        pages.default_page("history"),
        lambda: page.html(history, prices),
        lambda: markdown.text(history, prices),
        to_json(history, prices),
    )


def _issues(history: History, store: Store, folder: Path, budget: float) -> list[Path]:
    """A file for each failure that is new tonight; what was known yesterday has one."""
    from harness.cli.report.searching import Searches
    from harness.history.costs import Prices
    from harness.history.evidence import Evidences
    from harness.history.searching import fitting

    kinds.find_reports()
    from reports.history import issue
    from reports.history.view import HistoryView

    fresh = [line for line in history.lines if line.state.fresh]
    # A search over a guard forks its runs; one over a fuzzing failure imports SGLang for each.
    fresh.sort(key=lambda line: line.thing.kind == "fuzz")
    if not fresh:
        options.say("nothing new failed: no issue is written")
        return []
    folder.mkdir(parents=True, exist_ok=True)
    evidences, searches = Evidences(store), Searches(store, budget)
    view = HistoryView(history, Prices())
    written = []
    for line in fresh:
        evidence = evidences.of(line)
        for name, text in evidence.files.items():
            (folder / name).write_text(text, encoding="utf-8", errors="backslashreplace")
            evidence.replay = evidence.replay.replace(name, str(folder / name))
        search = searches.told(fitting(line, evidence, history))
        file = folder / issue.name(line)
        text = issue.text(line, evidence, search, view)
        file.write_text(pages.without_places(text), encoding="utf-8", errors="backslashreplace")
        written.append(file)
    options.say(f"issues: {len(written)} in {folder}")
    return written


def to_json(history: History, prices: Prices) -> dict[str, Any]:
    """The nights, and whatever was not simply ok in each of them."""
    import msgspec

    from harness.history.values import State

    told = [
        line
        for line in history.lines
        if line.state not in (State.OK, State.IDLE)
        or line.first_failed is not None
        or line.slower is not None
    ]
    return {
        "since": history.since.isoformat(),
        "green": history.green,
        "counts": {str(state): count for state, count in history.counts.items()},
        "nights": msgspec.to_builtins(history.nights),
        "things": [_line(line, history, prices) for line in told],
        "notes": history.notes,
    }


def _line(line: Line, history: History, prices: Prices) -> dict[str, Any]:
    import msgspec

    def day(place: int | None) -> str | None:
        return None if place is None else history.nights[place].day.isoformat()

    used = sum(point.device_spent for point in line.points)
    what = (line.thing.device or "gpu") if used else "cpu"
    seconds = used or sum(point.spent for point in line.points)
    return {
        "kind": line.thing.kind,
        "key": line.thing.key,
        "title": line.thing.title,
        "about": dict(line.thing.about),
        "release": line.thing.release,
        "device": line.thing.device,
        "state": str(line.state),
        "since": day(line.since),
        "first_failed": day(line.first_failed),
        "last_failed": day(line.last_failed),
        "last_ok": day(line.good.night) if line.good else None,
        "flaky": {"differ": line.score.differ, "of": line.score.of, "score": line.score.share},
        "median_seconds": line.median,
        "times_slower": line.slower,
        "used": {"what": what, "seconds": seconds, "cost": prices.of(what, seconds)},
        "nights": [
            {
                "night": day(point.night),
                "outcome": str(point.outcome),
                "words": point.last.words,
                "run": point.last.run,
                "seconds": point.spent,
                "device_seconds": point.device_spent,
                "versions": msgspec.to_builtins(point.last.versions),
            }
            for point in line.points
        ],
    }
