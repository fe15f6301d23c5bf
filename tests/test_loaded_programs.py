"""What a run loaded is a hint for later forks: whatever fails there, no result is lost."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness.workers import loaded_programs

HOLDER = "toy_programs"


@pytest.fixture(name="preloaded")
def record_preloads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A module that has loaded one program; return what it preloads."""
    found: list[Any] = []
    holder: Any = ModuleType(HOLDER)
    holder.list_loaded_programs, holder.preload_programs = lambda: {"rows": True}, found.append
    monkeypatch.setitem(sys.modules, HOLDER, holder)
    monkeypatch.setattr(loaded_programs, "_HOLDERS", (HOLDER,))
    return found


@pytest.mark.parametrize("content", [b'{"toy_programs": {"ro', b"[1]", b"\xff"])
def test_a_file_that_cannot_be_read_is_no_failure(
    preloaded: list[Any], tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "1.programs").write_bytes(content)
    loaded_programs.preload_programs(tmp_path / "1.programs")
    assert not preloaded


def test_a_failure_to_write_is_no_failure_of_the_test(preloaded: list[Any], tmp_path: Path) -> None:
    with loaded_programs.record_loaded_programs(Path("/dev/null/1.programs")):
        pass
    holder: Any = sys.modules[HOLDER]
    holder.list_loaded_programs = lambda: 1 / 0
    with loaded_programs.record_loaded_programs(tmp_path / "1.programs"):
        pass
    assert not list(tmp_path.iterdir())
