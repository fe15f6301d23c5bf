"""`pytest --teeth`: both sides of a guard in one process, judged as in a proof.

A guard is one test to pytest: its sides run one after another, in an order that is drawn anew, each
with all its fixtures, until the verdict is known. All runs share one process, so what a guard
leaves in it is there in the next run: `unfix prove` gives each run a process of its own.
"""

from __future__ import annotations

import functools
import random
import secrets
import time
from typing import Any

import pytest

from harness.core import device
from harness.core.outcomes import Outcome, Verdict
from harness.guards import cells, not_applicable, proof_exceptions, repeat, run_item, verdicts
from harness.guards.cells import Side
from harness.guards.sides import SideAttempt, choose_side
from harness.patching import live_engine
from harness.store.prove.values import CellResult, RepeatMode, SideRepetition, SideResult

_system_random = random.SystemRandom()


def run_both_sides(item: pytest.Item) -> None:
    """Run a guard on both sides until it has a verdict, and report that to pytest."""
    place = {"nodeid": item.nodeid, "location": item.location}
    item.ihook.pytest_runtest_logstart(**place)
    began = time.time()
    recorder = run_item.PhaseRecorder()
    manager = item.config.pluginmanager
    manager.register(recorder)
    try:
        cell = _prove_guard(item, recorder)
    finally:
        manager.unregister(recorder)
    report = _make_report(item, cell, began, _check_exceptions(item, cell))
    item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(**place)


def _prove_guard(item: pytest.Item, recorder: run_item.PhaseRecorder) -> CellResult:
    status = item.stash[cells.GUARDED_STATUS]
    guard = _name_guard(item.nodeid, status.toggle.id)
    cell = CellResult(guard, status.toggle.id, "current", device.get_device(), status.state.value)
    blob = item.config.getoption("replay") or ""
    while missing := verdicts.find_missing_sides(cell):
        name = _system_random.choice(missing)
        cell.order.append(name)
        _run_side(item, recorder, cell, name, blob)
    verdicts.judge_cell(cell)
    return cell


def _name_guard(nodeid: str, toggle: str) -> str:
    """Return a guard's id without the toggle, which pytest puts before its other parameters."""
    return nodeid.replace(f"[{toggle}-", "[").removesuffix(f"[{toggle}]")


@functools.cache
def _load_exceptions() -> tuple[proof_exceptions.ProofException, ...]:
    return proof_exceptions.load_project_exceptions(cells.load_registry())


def _check_exceptions(item: pytest.Item, cell: CellResult) -> list[str]:
    """Hold a judged cell of a suite against the list of exceptions; return its needless entries."""
    if not proof_exceptions.is_suite_guard(item.path):
        return []
    version = live_engine.engine.sources.version
    listed = [entry for entry in _load_exceptions() if entry.applies_to(version, cell.device)]
    proof_exceptions.explain_not_applicable(cell, listed)
    return proof_exceptions.find_needless_exceptions([cell], listed, version)


def _run_side(
    item: pytest.Item, recorder: run_item.PhaseRecorder, cell: CellResult, name: str, blob: str
) -> None:
    """Run one side, as a repetition of the failure that is known by now."""
    known, buggy = cell.sides.get(name), cell.sides.get("buggy")
    replayed = (RepeatMode.EXAMPLE, blob) if blob else None
    if buggy is not None and (known is not None or buggy.way is RepeatMode.EXAMPLE):
        repeated = _run_attempt(item, recorder, name, replayed or (buggy.way, buggy.blob))
        repetition = SideRepetition(repeated.outcome, repeated.headline, repeated.seconds)
        if known is not None:
            known.again.append(repetition)
            return
        cell.sides[name] = _run_attempt(item, recorder, name, replayed)
        cell.sides[name].again = [repetition]
    elif known is not None:
        repeated = _run_attempt(item, recorder, name, replayed)
        known.again.append(SideRepetition(repeated.outcome, repeated.headline, repeated.seconds))
    else:
        cell.sides[name] = _run_attempt(item, recorder, name, replayed)


def _run_attempt(
    item: pytest.Item,
    recorder: run_item.PhaseRecorder,
    name: str,
    repeated: tuple[RepeatMode, str] | None,
) -> SideResult:
    repeat.seed_random_sources(secrets.randbits(32))
    attempt = SideAttempt(Side(name), repeat.make_attempt_scope(*repeated) if repeated else None)
    with choose_side(item.config, attempt):
        side = run_item.run_inside_protocol(item, recorder)
    side.side, side.reach = name, attempt.reach
    side.way = repeat.choose_repeat_mode(item, side)
    return side


def _make_report(
    item: pytest.Item, cell: CellResult, began: float, problems: list[str]
) -> pytest.TestReport:
    """Make the one report of a guard: passed if it is proven and no list says otherwise."""
    buggy = cell.sides.get("buggy")
    properties: list[tuple[str, Any]] = []
    outcome: Any
    longrepr: Any
    if problems:
        outcome, longrepr = "failed", "\n".join(problems)
    elif cell.verdict is Verdict.PROVEN and buggy is not None:
        properties = [
            ("reach", buggy.reach),
            ("counterexample", buggy.headline),
            ("notes", "\n".join(buggy.example)),
        ]
        outcome, longrepr = "passed", None
    elif cell.verdict is Verdict.NA:
        outcome = "skipped"
        longrepr = (
            str(item.path),
            None,
            f"Skipped: {not_applicable.NOT_APPLICABLE_PREFIX}{cell.why}",
        )
    else:
        outcome, longrepr = "failed", _describe_failure(cell)
    report = pytest.TestReport(
        item.nodeid,
        item.location,
        dict.fromkeys(item.keywords, 1),
        outcome,
        longrepr,
        "call",
        user_properties=properties,
        start=began,
        stop=time.time(),
        duration=time.time() - began,
    )
    if outcome == "failed":
        report.sections += [
            (f"replay {verdicts.SIDE_PHRASES.get(side.side, side.side)}", side.replay)
            for side in cell.sides.values()
            if side.replay
        ]
    return report


def _describe_failure(cell: CellResult) -> str:
    """Describe the verdict, and each failure but that of a reverted side."""
    assert cell.verdict is not None
    parts = [f"{cell.toggle} is {cell.verdict.value}: {cell.why}"]
    parts += [
        f"{side.outcome.value} {verdicts.SIDE_PHRASES.get(side.side, side.side)}\n{side.detail}"
        for side in cell.sides.values()
        if side.detail and side.outcome is not Outcome.PASSED
    ]
    return "\n\n".join(parts)
