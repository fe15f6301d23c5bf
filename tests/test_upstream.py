"""SGLang's own registry is read without importing it, and its reverts are tried by its rule."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from harness.releases import upstream_reverts
from harness.releases.source_trees import FolderSourceTree

CODE = "class K:\n    def f(self):\n        first()\n        if a:\n            second()\n"


def make_edit(match: str, replacement: str) -> dict[str, str]:
    return {"match": match, "replacement": replacement}


def find_problem(
    folder: Path, code: str, *edits: dict[str, str], target: str = "sglang.some.K.f"
) -> str:
    registry = folder / (upstream_reverts.REGISTRY_MODULE.replace(".", "/") + ".py")
    registry.parent.mkdir(parents=True)
    text = yaml.safe_dump({"patches": [{"target": target, "edits": list(edits)}]})
    registry.write_text(
        "raise RuntimeError('imported')\n"
        f"_TEXT = {text!r}\n"
        "FIXES: dict[int, str] = {27460: _TEXT, 7: _OTHER}\nWORDS = {'a': 'b'}\n"
    )
    (folder / "sglang" / "some.py").write_text(code)
    tree = FolderSourceTree(folder, "made")
    assert upstream_reverts.read_upstream_numbers(tree) == {27460}
    (only,) = upstream_reverts.read_upstream_reverts(tree)
    assert only.name == "27460"
    return only.problem


def test_text_that_stands_once_applies_whatever_its_indentation(tmp_path: Path) -> None:
    assert find_problem(tmp_path, CODE, make_edit("if a:\n        second()", "second()")) == ""


@pytest.mark.parametrize(
    ("code", "times"),
    [
        (CODE.replace("second()", "second(b)"), 0),
        (CODE + "        if a:\n            second()\n", 2),
        (CODE.replace("if a:\n", "if a:\n\n"), 0),
    ],
)
def test_text_that_does_not_stand_once_is_broken(tmp_path: Path, code: str, times: int) -> None:
    found = find_problem(tmp_path, code, make_edit("if a:\n    second()", "second()"))
    assert found == f"sglang.some.K.f: its text occurs {times} times: if a:"


def test_a_later_edit_sees_what_an_earlier_one_wrote(tmp_path: Path) -> None:
    edits = make_edit("second()", "third()"), make_edit("third()", "fourth()")
    assert find_problem(tmp_path, CODE, *edits) == ""


def test_a_later_edit_does_not_find_what_an_earlier_one_took(tmp_path: Path) -> None:
    edits = make_edit("second()", "third()"), make_edit("second()", "fourth()")
    assert "its text occurs 0 times" in find_problem(tmp_path, CODE, *edits)


@pytest.mark.parametrize("target", ["sglang.some.K.g", "sglang.none.K.f"])
def test_a_target_that_is_gone_is_broken(tmp_path: Path, target: str) -> None:
    found = find_problem(tmp_path, CODE, make_edit("first()", "pass"), target=target)
    assert found == f"{target} does not exist"


def test_a_release_without_a_registry_has_no_reverts(tmp_path: Path) -> None:
    tree = FolderSourceTree(tmp_path, "made")
    assert upstream_reverts.read_upstream_reverts(tree) == []
    assert upstream_reverts.read_upstream_numbers(tree) == set()
