"""SGLang's own registry is read without importing it, and its reverts are tried by its rule."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from fixture_types import Patch

from harness.core import paths
from harness.fixes.matching.status_cache import find_upstream_reverts
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


SECOND = make_edit("if a:\n        second()", "second()")
TO_THIRD = make_edit("second()", "third()")
OCCURS = "sglang.some.K.f: its text occurs {} times: {}"


@pytest.mark.parametrize(
    ("code", "edits", "target", "problem"),
    [
        # Text that stands once applies, whatever its indentation; other text is broken.
        (CODE, [SECOND], "sglang.some.K.f", ""),
        (CODE.replace("second()", "second(b)"), [SECOND], "sglang.some.K.f",
         OCCURS.format(0, "if a:")),
        (CODE + "        if a:\n            second()\n", [SECOND], "sglang.some.K.f",
         OCCURS.format(2, "if a:")),
        (CODE.replace("if a:\n", "if a:\n\n"), [SECOND], "sglang.some.K.f",
         OCCURS.format(0, "if a:")),
        # A later edit sees what an earlier one wrote, and not what it took.
        (CODE, [TO_THIRD, make_edit("third()", "fourth()")], "sglang.some.K.f", ""),
        (CODE, [TO_THIRD, make_edit("second()", "fourth()")], "sglang.some.K.f",
         OCCURS.format(0, "second()")),
        *((CODE, [make_edit("first()", "pass")], gone, f"{gone} does not exist")
          for gone in ("sglang.some.K.g", "sglang.none.K.f")),
    ],
)  # fmt: skip
def test_a_revert_applies_by_upstreams_rule(
    tmp_path: Path, code: str, edits: list[dict[str, str]], target: str, problem: str
) -> None:
    assert find_problem(tmp_path, code, *edits, target=target) == problem


def test_a_release_without_a_registry_has_no_reverts(tmp_path: Path) -> None:
    tree = FolderSourceTree(tmp_path, "made")
    assert upstream_reverts.read_upstream_reverts(tree) == []
    assert upstream_reverts.read_upstream_numbers(tree) == set()


def test_a_kept_answer_is_asked_anew_once_the_target_changes(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setenv("UNFIX_HOME", str(tmp_path))
    paths.state_folder().mkdir()
    find_problem(tmp_path, CODE, SECOND)
    read = [find_upstream_reverts(FolderSourceTree(tmp_path, "made"))[0].problem]
    monkeypatch.setattr(upstream_reverts, "read_upstream_reverts", None)  # the answer is kept
    read.append(find_upstream_reverts(FolderSourceTree(tmp_path, "made"))[0].problem)
    monkeypatch.undo()
    monkeypatch.setenv("UNFIX_HOME", str(tmp_path))
    (tmp_path / "sglang" / "some.py").write_text(CODE.replace("second()", "second(b)"))
    read.append(find_upstream_reverts(FolderSourceTree(tmp_path, "made"))[0].problem)
    assert read == ["", "", OCCURS.format(0, "if a:")]
