"""Toggles that no guard names: a problem of the run, unless their file says that it is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.prove.messages import Collected, Task
from harness.prove.plan import Asked, Left, Target
from harness.registry import catalogue
from harness.store.prove.values import OnRelease

FIRST, OTHER, *_ = catalogue.load()
ONE = msgspec.structs.replace(FIRST, unguarded="")
KNOWN = msgspec.structs.replace(OTHER, unguarded="no suite runs it")


def planned(*guarded: str) -> OnRelease:
    tree: Any = None
    target = Target("0.5.23", Path("python"), tree)
    left = Left(Asked("prove", [target], [ONE, KNOWN], named=False), target)
    left.on.states = {ONE.id: "fixed", KNOWN.id: "fixed"}
    tasks = [Task(n, "guard", toggle, "fixed", "fixed") for n, toggle in enumerate(guarded)]
    left.plan(Collected(tasks, 0.0, "cpu", True))
    return left.on


def test_what_a_file_says_of_itself_is_no_problem_and_what_it_does_not_say_is() -> None:
    on = planned("elsewhere")
    assert (on.unguarded, on.known_unguarded, on.problems) == ([ONE.id], [KNOWN.id], [])


@pytest.mark.parametrize("guarded", [[KNOWN.id], [ONE.id, KNOWN.id]])
def test_a_guard_for_what_its_file_says_has_none_is_a_problem(guarded: list[str]) -> None:
    assert planned(*guarded).problems == [
        f"{KNOWN.id} has a guard: take `unguarded` out of its file"
    ]
