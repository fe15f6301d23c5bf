"""Cached data of kernels: written once, rewritten if unreadable, evicted if unread."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from fixture_types import Patch

from harness.core import paths
from harness.core.cache import get_or_compute


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.setattr(paths, "state_folder", lambda: tmp_path)
    return tmp_path / "kernels"


def file_of(folder: Path, key: str) -> Path:
    return folder / "graphs" / key[:2] / key


def test_what_cannot_be_read_is_made_again(folder: Path) -> None:
    get_or_compute("graphs", "abc", lambda: 1)
    file_of(folder, "abc").write_bytes(b"cut sho")
    assert get_or_compute("graphs", "abc", lambda: 2) == 2
    assert get_or_compute("graphs", "abc", lambda: 3) == 2


def test_what_nobody_read_for_a_month_goes_and_the_rest_stays(folder: Path) -> None:
    for key in ("old", "read", "new"):
        get_or_compute("graphs", key, lambda: 1)
    now = time.time()
    os.utime(file_of(folder, "old"), (now - 40 * 86400, now - 40 * 86400))
    os.utime(file_of(folder, "read"), (now - 86400, now - 40 * 86400))
    get_or_compute("graphs", "more", lambda: 1)  # evicted today already
    assert file_of(folder, "old").exists()
    os.utime(folder / "last-eviction", (now - 2 * 86400, now - 2 * 86400))
    get_or_compute("graphs", "another", lambda: 1)
    assert not file_of(folder, "old").exists()
    assert all(file_of(folder, key).exists() for key in ("read", "new", "more", "another"))
