"""A workspace to run matrices in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from driving import Drive, stand_in


@pytest.fixture
def drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Drive]:
    monkeypatch.setenv("UNFIX_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    back = stand_in()
    yield Drive(tmp_path)
    back()
