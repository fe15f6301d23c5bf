"""A function is called with its module when that is imported: once, and not by a search."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from harness.core import after_import
from harness.patching import import_runs


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "imported_later.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "imported_later", raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    return "imported_later"


def test_a_module_that_is_there_is_passed_at_once(module: str) -> None:
    imported = importlib.import_module(module)
    found: list[ModuleType] = []
    after_import.call_after_import({module: found.append})
    assert found == [imported]


def test_the_recorder_of_imports_leaves_a_later_hook_its_turn(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[ModuleType] = []
    after_import.call_after_import({module: found.append})
    recorder = import_runs.ImportRuns()
    position = next(
        index
        for index, finder in enumerate(sys.meta_path)
        if isinstance(finder, after_import.AfterImportFinder)
    )
    sys.meta_path.insert(position, recorder)
    with recorder.record("test_a_file.py"):  # a module of nobody: its import is set apart
        assert found == [importlib.import_module(module)]
