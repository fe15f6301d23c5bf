"""Toggles that no guard names: a problem of the run, unless their file declares them unguarded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.fixes.registry import toggle_catalogue
from harness.runs.prove.plan import ProveRequest, ReleasePlan
from harness.store.prove.values import ReleaseFacts
from harness.workers.messages import GuardsCollected, GuardTask
from harness.workers.release_target import ReleaseTarget

FIRST, OTHER, *_ = toggle_catalogue.load_catalogue()
ONE = msgspec.structs.replace(FIRST, unguarded="")
KNOWN = msgspec.structs.replace(OTHER, unguarded="no suite runs it")


def plan_release(*guarded: str) -> ReleaseFacts:
    tree: Any = None
    target = ReleaseTarget("0.5.23", Path("python"), tree)
    left = ReleasePlan(
        ProveRequest("prove", [target], [ONE, KNOWN], has_named_toggles=False), target
    )
    left.facts.states = {ONE.id: "fixed", KNOWN.id: "fixed"}
    tasks = [GuardTask(n, "guard", toggle, "fixed", "fixed") for n, toggle in enumerate(guarded)]
    left.plan_tasks(GuardsCollected(tasks, 0.0, "cpu", True))
    return left.facts


def test_a_toggle_without_a_guard_is_a_problem_unless_its_file_says_so() -> None:
    on = plan_release("elsewhere")
    assert (on.unguarded, on.known_unguarded, on.problems) == ([ONE.id], [KNOWN.id], [])


@pytest.mark.parametrize("guarded", [[KNOWN.id], [ONE.id, KNOWN.id]])
def test_a_guard_for_a_toggle_whose_file_says_unguarded_is_a_problem(guarded: list[str]) -> None:
    assert plan_release(*guarded).problems == [
        f"{KNOWN.id} has a guard: take `unguarded` out of its file"
    ]
