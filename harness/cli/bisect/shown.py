"""What is shown and written of a search, as it ends and by `report` again."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import msgspec

from harness import paths
from harness.cli import options, pages
from harness.store.bisect.values import Part, Search


def default_page(search: Search) -> Path:
    """One for each search: the next one does not replace what somebody has open."""
    return paths.workspace() / "reports" / "out" / f"bisect-{search.id}.html"


def write(search: Search, arguments: argparse.Namespace) -> None:
    """The files that were asked for, and the page in any case."""
    pages.find_reports()
    from reports.bisect import markdown, page

    pages.write_one(
        arguments,
        default_page(search),
        lambda file: page.write(search, file),
        lambda: markdown.text(search),
        lambda: as_data(search),
    )


def show(search: Search, arguments: argparse.Namespace) -> None:
    if arguments.json:
        options.print_json(as_data(search))
        return
    pages.find_reports()
    from reports.bisect import terminal

    terminal.show(search, options.console())


def as_data(search: Search) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(search)
    return data


def show_plan(part: Part, most: int, usual: int, jobs: int, arguments: argparse.Namespace) -> None:
    """What a search would do."""
    if arguments.json:
        plan = {**msgspec.to_builtins(part), "runs": {"at most": most, "usually": usual}}
        options.print_json(plan)
        return
    verb = "taken out of" if part.direction == "revert" else "put into"
    print(f"{len(part.toggles)} toggles can be {verb} SGLang {part.where}:")
    for name in part.toggles:
        print(f"  {name}")
    for pair in part.conflicts:
        print(f"never together: {' and '.join(pair)}")
    for name, why in part.left_out.items():
        print(f"not tried: {name} ({why})")
    if arguments.repeat > 1:
        print(
            f"a symptom that does not show each time: up to {arguments.repeat} runs of a set, "
            f"until {arguments.confidence:.1%} is reached"
        )
        return
    print(
        f"runs if one of them is the culprit: {usual} on average, {most} at most, {jobs} at a "
        "time; more if several act together"
    )


def show_history_plan(names: list[str], arguments: argparse.Namespace) -> None:
    inside = len(names) - 2
    most = 2 + inside.bit_length()
    if arguments.json:
        options.print_json({"releases": names, "runs": {"at most": most}})
        return
    print(f"{len(names)} releases: {', '.join(names)}")
    print(f"runs to find the step: {most} at most; then a search over its toggles on both sides")
