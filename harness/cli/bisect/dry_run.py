"""What a search would do, shown: `unfix bisect --dry-run`."""

from __future__ import annotations

import argparse

import msgspec

from harness.cli import options
from harness.store.bisect.values import ToggleSearch


def print_plan(
    part: ToggleSearch, max_runs: int, usual_runs: int, jobs: int, arguments: argparse.Namespace
) -> None:
    """What a search would do."""
    if arguments.json:
        plan = {**msgspec.to_builtins(part), "runs": {"at most": max_runs, "usually": usual_runs}}
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
        f"runs if one of them is the culprit: {usual_runs} on average, {max_runs} at most, {jobs} at a "
        "time; more if several act together"
    )


def print_history_plan(names: list[str], arguments: argparse.Namespace) -> None:
    inside = len(names) - 2
    most = 2 + inside.bit_length()
    if arguments.json:
        options.print_json({"releases": names, "runs": {"at most": most}})
        return
    print(f"{len(names)} releases: {', '.join(names)}")
    print(f"runs to find the step: {most} at most; then a search over its toggles on both sides")
