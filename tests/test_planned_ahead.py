"""A plan that is made ahead is the one that the process asks for, if its engine is this one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from harness.patching import boot, environment, planner

TOY = Path(__file__).parent / "toy"


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a process asks for in the environment that a command is given."""
    monkeypatch.setenv("UNFIX_HOME", str(tmp_path))
    given = dict(os.environ)
    environment.put_in(given, ["toy-static", "toy-super"], [], [TOY / "toggles"], tmp_path / "left")
    planner.ahead(TOY, ["toy-static", "toy-super"], [], given)
    for name in (boot.REVERT, boot.ENABLE, boot.CARRIED, boot.FOLDERS):
        monkeypatch.delenv(name, raising=False)
        if name in given:
            monkeypatch.setenv(name, given[name])
    revert, enable = boot.asked_for()
    root = str(Path(TOY / "sglang").parent)
    return {"root": root, "revert": revert, "enable": enable, "folders": boot.folders()}


def nobody(request: dict[str, Any]) -> dict[str, Any]:
    raise AssertionError("the planner is asked again")


def test_the_process_finds_it(asked: dict[str, Any]) -> None:
    toggles = boot.plan(asked, nobody)["plan"]["toggles"]
    assert [toggle[0] for toggle in toggles] == ["toy-static", "toy-super"]


def test_another_question_is_not_answered_by_it(asked: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match="asked again"):
        boot.plan({**asked, "revert": ["toy-static"]}, nobody)


def test_an_engine_that_changed_meanwhile_makes_its_own(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boot, "engine", lambda: ["tomorrow's"])
    with pytest.raises(AssertionError, match="asked again"):
        boot.plan(asked, nobody)
