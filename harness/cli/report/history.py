"""`unfix report --since`: shows a store's nights, as a table, a page, Markdown, issues and data."""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli import options, run_lookup, run_output
from harness.core import machine
from harness.core.errors import NotReadyError, UnfixError

if TYPE_CHECKING:
    from harness.runs.history.resource_prices import ResourcePrices
    from harness.runs.history.values import NightHistory, Timeline
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


def check_arguments(arguments: argparse.Namespace) -> None:
    """Refuse options that exclude each other."""
    if arguments.since is None:
        for name in ("price", "issues", "bisect"):
            if getattr(arguments, name):
                raise UnfixError(f"--{name} needs --since TIME, which says which nights to report")
        return
    if arguments.runs or arguments.list or arguments.proofs:
        raise UnfixError(
            "--since reports all runs of that time: leave out run ids, --list and --proofs"
        )
    if arguments.junit is not None:
        raise UnfixError(
            "--junit does not go with --since, which has --html, --markdown and --json"
        )
    if arguments.bisect and arguments.issues is None:
        raise UnfixError("--bisect needs --issues DIR: it searches for the fix behind each of them")


def report_history(arguments: argparse.Namespace, store: Store) -> int:
    from harness.runs.history import resource_prices, time_window, timelines

    now = datetime.datetime.now(datetime.UTC)
    since = time_window.parse_since(arguments.since, now)
    prices = resource_prices.parse_prices(arguments.price)
    budget = options.parse_budget(arguments.bisect, "--bisect") if arguments.bisect else 0.0
    for other in arguments.merge:
        run_lookup.merge_store(store, other)
    history = timelines.read_history(store, since, now)
    if not history.nights:
        notes = "".join(f"; {note}" for note in history.notes)
        raise NotReadyError(f"{store.file} holds no run since {since:%Y-%m-%d %H:%M} UTC{notes}")
    _write_outputs(history, prices, arguments)  # before the searches, which may be stopped
    issues = _write_issues(history, store, arguments.issues, budget) if arguments.issues else []
    if arguments.json:
        options.print_json(
            history_to_json(history, prices) | {"issues": [str(file) for file in issues]}
        )
    else:
        from reports.history import terminal

        terminal.print_run(history, prices, options.make_console())
    return 0 if history.green else 1


def _write_outputs(
    history: NightHistory, prices: ResourcePrices, arguments: argparse.Namespace
) -> None:
    from reports.history import markdown, page

    default = run_output.get_default_page("history")
    folder = (arguments.html or default).parent
    run_output.write_outputs(
        arguments,
        default,
        lambda: page.render_page(history, prices, machine.describe_commit(), folder),
        lambda: markdown.render_markdown(history, prices),
        history_to_json(history, prices),
        is_red=not history.green,
    )


def _write_issues(history: NightHistory, store: Store, folder: Path, budget: float) -> list[Path]:
    """Write a file for each new failure, as a known one has its file already."""
    from harness.cli.report.failure_search import FailureSearches
    from harness.runs.history.failure_evidence import EvidenceReader
    from harness.runs.history.resource_prices import ResourcePrices
    from harness.runs.history.search_suggestion import suggest_search
    from reports.history import issue
    from reports.history.view import HistoryView

    fresh = [line for line in history.timelines if line.state.is_new_failure]
    # A search over a guard forks its runs; one over a fuzzing failure imports SGLang for each.
    fresh.sort(key=lambda line: line.item.kind == "fuzz")
    if not fresh:
        options.report_status("nothing new failed: no issue is written")
        return []
    folder.mkdir(parents=True, exist_ok=True)
    evidences, searches = EvidenceReader(store), FailureSearches(store, budget)
    view = HistoryView(history, ResourcePrices())
    written = []
    for line in fresh:
        evidence = evidences.read_evidence(line)
        for name, text in evidence.files.items():
            run_output.save_text(folder / name, text)
            evidence.replay_command = evidence.replay_command.replace(name, str(folder / name))
        search = searches.describe_search(suggest_search(line, evidence, history))
        file = folder / issue.make_file_name(line)
        text = issue.render_issue(line, evidence, search, view)
        run_output.save_text(file, run_output.hide_local_paths(text))
        written.append(file)
    options.report_status(f"issues: {len(written)} in {folder}")
    return written


def history_to_json(history: NightHistory, prices: ResourcePrices) -> dict[str, Any]:
    """Return the nights, and all timelines that are not ok throughout."""
    import msgspec

    from harness.runs.history.values import TimelineState

    timelines = [
        line
        for line in history.timelines
        if line.state not in (TimelineState.OK, TimelineState.IDLE)
        or line.first_failed is not None
        or line.slowdown is not None
    ]
    return {
        "since": history.since.isoformat(),
        "green": history.green,
        "counts": {str(state): count for state, count in history.counts.items()},
        "nights": msgspec.to_builtins(history.nights),
        "things": [_line_to_json(line, history, prices) for line in timelines],
        "notes": history.notes,
    }


def _line_to_json(line: Timeline, history: NightHistory, prices: ResourcePrices) -> dict[str, Any]:
    import msgspec

    def day(place: int | None) -> str | None:
        return None if place is None else history.nights[place].day.isoformat()

    used = sum(point.device_seconds for point in line.points)
    what = (line.item.device or "gpu") if used else "cpu"
    seconds = used or sum(point.seconds for point in line.points)
    return {
        "kind": line.item.kind,
        "key": line.item.key,
        "title": line.item.title,
        "about": dict(line.item.details),
        "release": line.item.release,
        "device": line.item.device,
        "state": str(line.state),
        "since": day(line.since_night),
        "first_failed": day(line.first_failed),
        "last_failed": day(line.last_failed),
        "last_ok": day(line.last_ok.night_index) if line.last_ok else None,
        "flaky": {
            "differ": line.score.differing,
            "of": line.score.compared,
            "score": line.score.share,
        },
        "median_seconds": line.median_seconds,
        "times_slower": line.slowdown,
        "used": {"what": what, "seconds": seconds, "cost": prices.compute_cost(what, seconds)},
        "nights": [
            {
                "night": day(point.night_index),
                "outcome": str(point.outcome),
                "words": point.main_observation.message,
                "run": point.main_observation.run_id,
                "seconds": point.seconds,
                "device_seconds": point.device_seconds,
                "versions": msgspec.to_builtins(point.main_observation.versions),
            }
            for point in line.points
        ],
    }
