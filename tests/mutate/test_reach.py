"""A record of the lines that guards run is valid until one of its inputs changes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.core import code_digest, paths
from harness.core.outcomes import Outcome
from harness.releases.source_trees import FolderSourceTree
from harness.runs.mutate import line_coverage
from harness.runs.mutate.line_coverage import CoverageRecord, GuardCoverage
from harness.workers.release_target import ReleaseTarget

FILES = [
    "conftest.py",
    "suites/conftest.py",
    "fixtures/worlds.py",
    "fixtures/models/weights.safetensors",
    "fixtures/models/words.txt",
    "toggles/1.yaml",
    "further/2.yaml",
    "harness/patching/live_engine.py",
    "harness/checking.py",
    "release/sglang/srt/sizes.py",
    "packages/triton-3.0.dist-info/METADATA",
]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in FILES:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("Name: triton\nVersion: 3.0\n")
    monkeypatch.setattr(paths, "project_folder", lambda: tmp_path)
    monkeypatch.setattr(paths, "HARNESS_FOLDER", tmp_path / "harness")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    return tmp_path


@pytest.fixture
def key(project: Path) -> Callable[[], str]:
    def make_key() -> str:
        tree = FolderSourceTree(project / "release", "current")
        code_digest.digest_code.cache_clear()  # as in the next run's process
        target = ReleaseTarget("current", Path(sys.executable), tree)
        return line_coverage.compute_coverage_key(target, "default", [project / "further"])

    return make_key


@pytest.mark.parametrize("name", FILES)
def test_a_change_of_what_guards_stand_on_is_another_key(
    name: str, project: Path, key: Callable[[], str]
) -> None:
    before = key()
    assert key() == before
    (project / name).write_text("Name: triton\nVersion: 3.10\n")
    assert key() != before


@pytest.mark.parametrize(
    "name",
    [
        "fixtures/__pycache__/worlds.cpython-311.pyc",
        "harness/runs/fuzz/__pycache__/slices.cpython-311.pyc",
        "further/.2.yaml.swp",
        "harness/cli/mutate/execution.py",
        "suites/equal_faults.yaml",
        "docs/mutate.md",
    ],
)
def test_what_no_guard_reads_is_the_same_key(
    name: str, project: Path, key: Callable[[], str]
) -> None:
    before = key()
    file = project / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("new")
    assert key() == before


def test_a_change_that_leaves_size_and_time_is_another_key(
    project: Path, key: Callable[[], str]
) -> None:
    for name in ("release/sglang/srt/sizes.py", "fixtures/models/weights.safetensors"):
        file = project / name
        before, status, text = key(), file.stat(), file.read_text()
        file.write_text(text.swapcase())
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert key() != before


def test_a_change_in_one_suite_costs_the_record_of_that_suite_alone(tmp_path: Path) -> None:
    guards = {}
    for suite in ("one", "other"):
        (tmp_path / suite).mkdir()
        (tmp_path / suite / "test_it.py").write_text("")
        name = f"{suite}/test_it.py::test_it"
        digest = line_coverage.digest_suite(name, tmp_path)
        guards[name] = GuardCoverage(name, Outcome.PASSED, 1.0, suite=digest)
    failed = "one/test_it.py::test_ill"
    ill = GuardCoverage(
        failed, Outcome.OUT_OF_MEMORY, 1.0, suite=guards["one/test_it.py::test_it"].suite
    )
    file = tmp_path / "record.json"
    line_coverage.save_coverage(file, CoverageRecord("key", {**guards, failed: ill}))
    assert line_coverage.load_coverage(file, "key", tmp_path).guards == guards
    assert line_coverage.load_coverage(file, "another", tmp_path).guards == {}

    (tmp_path / "other" / "cases.yaml").write_text("- 1\n")
    line_coverage._digest_suite_folder.cache_clear()
    assert list(line_coverage.load_coverage(file, "key", tmp_path).guards) == [
        "one/test_it.py::test_it"
    ]
