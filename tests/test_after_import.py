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


def test_the_function_sees_the_executed_module(module: str) -> None:
    found: list[int] = []
    after_import.call_after_import({module: lambda imported: found.append(imported.value)})
    assert found == []
    importlib.import_module(module)
    importlib.import_module(module)
    assert found == [1]


def test_a_search_for_the_module_is_no_import_of_it(module: str) -> None:
    found: list[ModuleType] = []
    after_import.call_after_import({module: found.append})
    assert importlib.util.find_spec(module) is not None
    assert found == []
    importlib.import_module(module)
    assert [one.__name__ for one in found] == [module]


def test_a_module_that_is_there_is_passed_at_once(module: str) -> None:
    imported = importlib.import_module(module)
    found: list[ModuleType] = []
    after_import.call_after_import({module: found.append})
    assert found == [imported]


def test_two_functions_for_one_module_are_both_called(module: str) -> None:
    found: list[str] = []
    after_import.call_after_import({module: lambda _: found.append("first")})
    after_import.call_after_import({module: lambda _: found.append("second")})
    importlib.import_module(module)
    assert sorted(found) == ["first", "second"]
