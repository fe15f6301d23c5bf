"""A plan that is made in advance is the one that the process requests, with the same engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fixture_types import Patch

from harness.patching import bootstrap, planner
from harness.patching.child_environment import ChildEnvironment

TOY = Path(__file__).parent / "toy"


@pytest.fixture
def requested_toggles(tmp_path: Path, monkeypatch: Patch) -> dict[str, Any]:
    """The toggles that a process requests in a command's environment."""
    monkeypatch.setenv("UNFIX_HOME", str(tmp_path))
    environment = ChildEnvironment()
    environment.set_toggles(["toy-static", "toy-super"], [], [TOY / "toggles"], tmp_path / "left")
    planner.plan_ahead(TOY, ["toy-static", "toy-super"], [], environment)
    for name in (
        bootstrap.REVERT_VARIABLE,
        bootstrap.ENABLE_VARIABLE,
        bootstrap.CARRIED_REVERT_VARIABLE,
        bootstrap.FOLDERS_VARIABLE,
    ):
        monkeypatch.delenv(name, raising=False)
        if name in environment:
            monkeypatch.setenv(name, environment[name])
    revert, enable = bootstrap.read_requested_ids()
    folders = bootstrap.read_toggle_folders()
    return {"root": str(TOY), "revert": revert, "enable": enable, "folders": folders}


def answer_nothing(request: dict[str, Any]) -> dict[str, Any]:
    raise AssertionError("the planner is asked again")


def test_the_process_finds_it(requested_toggles: dict[str, Any]) -> None:
    toggles = bootstrap.fetch_plan(requested_toggles, answer_nothing)["plan"]["toggles"]
    assert [toggle[0] for toggle in toggles] == ["toy-static", "toy-super"]


def test_another_question_is_not_answered_by_it(requested_toggles: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match="asked again"):
        bootstrap.fetch_plan({**requested_toggles, "revert": ["toy-static"]}, answer_nothing)


def test_a_changed_engine_makes_its_own_plan(
    requested_toggles: dict[str, Any], monkeypatch: Patch
) -> None:
    monkeypatch.setattr(bootstrap, "CODE_DIGEST", "tomorrow's")
    with pytest.raises(AssertionError, match="asked again"):
        bootstrap.fetch_plan(requested_toggles, answer_nothing)
