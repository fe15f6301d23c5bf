"""A function is called with its module when that is imported: once, and not by a search."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from harness.core import after_import


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
