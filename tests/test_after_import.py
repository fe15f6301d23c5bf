"""A function is called with its module when that is imported: once, and not by a search."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness.core import after_import


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "imported_later.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "imported_later", raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    return "imported_later"


def test_each_function_sees_the_executed_module_once(module: str) -> None:
    """A search for the module is no import of it."""
    found: list[str] = []

    def make_hook(name: str) -> Callable[[Any], None]:
        return lambda imported: found.append(f"{name} {imported.value}")

    for name in ("first", "second"):
        after_import.call_after_import({module: make_hook(name)})
    assert importlib.util.find_spec(module) is not None
    assert found == []
    importlib.import_module(module)
    importlib.import_module(module)
    assert sorted(found) == ["first 1", "second 1"]


def test_a_module_that_is_there_is_passed_at_once(module: str) -> None:
    imported = importlib.import_module(module)
    found: list[ModuleType] = []
    after_import.call_after_import({module: found.append})
    assert found == [imported]
