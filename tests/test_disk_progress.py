"""A step that only fills the disk says how far it is and how long it will take."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from types import SimpleNamespace

from calling import wait_until
from fixture_types import Patch

from harness.core import disk_progress, paths
from harness.releases import installer, provisioning
from harness.releases.managed_releases import Release, list_releases


def fill_disk(monkeypatch: Patch) -> None:
    """Report as if 10 MB came with each look at the disk, a hundredth of a second apart."""
    free = itertools.count(1_000_000_000, -10_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=next(free)))
    monkeypatch.setattr(disk_progress, "REPORT_INTERVAL", 0.01)


def test_it_says_how_much_is_written_and_left(monkeypatch: Patch, tmp_path: Path) -> None:
    fill_disk(monkeypatch)
    said: list[str] = []
    with disk_progress.report_written_bytes(tmp_path, "filling", 20e6, said.append):
        wait_until(lambda: len(said) > 1)
    assert said[0].startswith("filling: 10 of about 20 MB written, about ")
    assert said[1].startswith("filling: 20 of about 20 MB written, for ")


def test_sources_are_fetched_with_progress(monkeypatch: Patch, tmp_path: Path) -> None:
    fill_disk(monkeypatch)
    said: list[str] = []
    monkeypatch.setattr(Release, "has_sources", False)
    monkeypatch.setattr(Release, "open_sources", lambda release: release.name)
    monkeypatch.setattr(paths, "releases_folder", lambda: tmp_path)
    fetch = lambda *_: wait_until(lambda: len(said) > 1)  # noqa: E731
    monkeypatch.setattr(installer, "fetch_release_sources", fetch)
    provisioning.ensure_sources(list_releases()[:2], said.append)
    assert said[1].startswith(f"{said[0].partition(' (')[0]}: 10 of about 30 MB written")
