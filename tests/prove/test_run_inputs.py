"""What a stored run stands on is known: guards, what they import, SGLang's sources."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from calling import copy_toy_release

from harness.cli.prove.call import ProveCall
from harness.cli.prove.request import digest_inputs, digest_sources
from harness.releases import source_trees
from harness.releases.source_trees import FolderSourceTree, WheelSourceTree
from harness.workers.release_target import ReleaseTarget


@pytest.mark.parametrize(
    "changed",
    [
        *("guards/helper.py", "guards/parts/more.py", "guards/parts/cases.json"),
        *("guards/plain/helper.py", "conftest.py", "guards/pytest.ini"),
    ],
)
@pytest.mark.parametrize("is_relative", [False, True])
def test_a_file_that_a_guard_stands_on_is_part_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str, is_relative: bool
) -> None:
    for name in ("guards/test_a.py", "guards/parts/__init__.py", changed):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("\n")
    monkeypatch.chdir(tmp_path / "guards")
    guard = Path("test_a.py") if is_relative else tmp_path / "guards" / "test_a.py"
    call = ProveCall("prove", "", words=["-k", "a", f"{guard}::test_a"])
    before = digest_inputs(call)
    (tmp_path / "elsewhere.py").write_text("changed = 1\n")
    assert digest_inputs(call) == before
    (tmp_path / changed).write_text("changed = 1\n")
    assert digest_inputs(call) != before


def test_a_release_that_was_edited_has_other_sources(tmp_path: Path) -> None:
    copy_toy_release(tmp_path / "sglang")
    targets = [ReleaseTarget("1.0.0", Path("python"), FolderSourceTree(tmp_path, "current"))]
    before = digest_sources(targets)
    with (tmp_path / "sglang" / "users.py").open("a") as module:
        module.write("CHANGED = 1\n")
    assert before.keys() == {"1.0.0"}
    assert digest_sources(targets) != before


def test_the_sources_in_a_wheel_count(tmp_path: Path) -> None:
    digests = set()
    for name, text in (("one", "A = 1\n"), ("two", "A = 2\n")):
        wheel = tmp_path / f"{name}.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("sglang/users.py", text)
        digests.add(source_trees.digest_sources(WheelSourceTree(wheel, "1.0.0")))
    assert len(digests) == 2


def test_a_source_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "sglang" / "users.py").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        source_trees.digest_sources(FolderSourceTree(tmp_path, "current"))
