"""A workspace to run matrices in."""

from __future__ import annotations

from pathlib import Path

import pytest
from driving import Drive, replace_planning
from fixture_types import Patch


@pytest.fixture
def drive(tmp_path: Path, monkeypatch: Patch) -> Drive:
    monkeypatch.setenv("UNFIX_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    replace_planning(monkeypatch.setattr)
    return Drive(tmp_path)
