"""`unfix bisect --dry-run`: prints the plan of a search without a run."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from harness.cli import options
from harness.cli.bisect.execution import choose_candidates, list_releases_between
from harness.cli.bisect.preparation import PreparedSearch, prepare_new_search
from harness.core.errors import UnfixError
from harness.core.wording import format_count
from harness.releases import provisioning
from harness.runs.bisect import guard_runner, search_driver
from harness.runs.bisect.request import BisectRequest
from harness.runs.bisect.trial_runner import VersionUnderTest


def print_plan(request: BisectRequest, as_json: bool) -> int:
    prepared = prepare_new_search(request)
    is_guard = guard_runner.find_guard_node(request.command) is not None
    if not is_guard and request.release is None and shutil.which(request.command[0]) is None:
        raise UnfixError(f"there is no command '{request.command[0]}'")
    if request.kind == "releases":
        _print_release_plan(list_releases_between(request), as_json)
    else:
        _print_toggle_plan(prepared, is_guard, as_json)
    return 0


def _print_toggle_plan(prepared: PreparedSearch, is_guard: bool, as_json: bool) -> None:
    request = prepared.request
    tree = provisioning.ensure_tree(request.release, options.report_status)
    version = VersionUnderTest(request.release or str(tree.version), tree, Path(), Path())
    candidates = choose_candidates(prepared, version)
    jobs = request.jobs or 1
    most, usual = search_driver.estimate_runs(
        candidates, jobs, request.find_all, base_runs=1 if is_guard else 3
    )
    plan = candidates.make_toggle_search("toggles", version.name)
    if as_json:
        runs = {"at most": most, "usually": usual}
        options.print_json({**msgspec.to_builtins(plan), "runs": runs})
        return
    verb = "taken out of" if plan.direction == "revert" else "put into"
    print(f"{format_count(len(plan.toggles), 'toggle')} can be {verb} SGLang {plan.where}:")
    for name in plan.toggles:
        print(f"  {name}")
    for pair in plan.conflicts:
        print(f"never together: {' and '.join(pair)}")
    for name, why in plan.left_out.items():
        print(f"not tried: {name} ({why})")
    if request.repeat > 1:
        print(
            f"a symptom that does not show each time: up to {request.repeat} runs of a set, "
            f"until {request.confidence:.1%} is reached"
        )
    else:
        print(
            f"runs if one of them is the culprit: {usual} on average, {most} at most, "
            f"{jobs} at a time; more if several act together"
        )


def _print_release_plan(names: list[str], as_json: bool) -> None:
    most = 2 + (len(names) - 2).bit_length()
    if as_json:
        options.print_json({"releases": names, "runs": {"at most": most}})
        return
    print(f"{format_count(len(names), 'release')}: {', '.join(names)}")
    print(f"runs to find the step: {most} at most; then a search over its toggles on both sides")
