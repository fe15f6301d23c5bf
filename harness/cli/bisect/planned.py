"""What a search would do, shown: `unfix bisect --dry-run`."""

from __future__ import annotations

import argparse

import msgspec

from harness.cli import options
from harness.store.bisect.values import Part


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
