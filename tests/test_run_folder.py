"""The folder of a lane: at one place for all lanes, or at its own where that is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.core import write_confinement
from harness.workers.run_folder import RunFolder


def test_a_lane_whose_bind_mount_is_refused_has_its_own_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: Path, place: Path) -> None:
        raise PermissionError(f"the kernel refuses {place} for {folder}")

    monkeypatch.setattr(write_confinement, "can_make_namespaces", lambda: True)
    monkeypatch.setattr(write_confinement, "bind_folder", refuse)
    folders = [RunFolder.make(tmp_path, number) for number in (1, 2)]
    assert [folder.path for folder in folders] == [tmp_path / "1", tmp_path / "2"]
    assert not any(folder.may_isolate for folder in folders)
    folders[0].prepare()
    assert sorted(os.listdir(tmp_path / "1")) == ["home", "kernels", "tmp", "work"]
