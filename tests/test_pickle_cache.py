"""Cached data of kernels: written once, rewritten if unreadable, evicted if unread."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixture_types import Patch

from harness.core import paths, preparation
from harness.core.cache import get_or_compute


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.setattr(paths, "state_folder", lambda: tmp_path)
    return tmp_path / "kernels"


def file_of(folder: Path, key: str) -> Path:
    return folder / "graphs" / key[:2] / key


def test_listeners_are_entered_around_what_is_computed(folder: Path, monkeypatch: Patch) -> None:
    events: list[str] = []

    @contextlib.contextmanager
    def listen() -> Iterator[None]:
        events.append("begins")
        yield
        events.append("ends")

    def compute(value: str) -> str:
        events.append(value)
        return value

    def compute_outer() -> str:
        return get_or_compute("graphs", "inner", lambda: compute("inner"))

    monkeypatch.setattr(preparation, "LISTENERS", [listen])
    for _ in range(2):
        get_or_compute("graphs", "outer", compute_outer)
    assert events == ["begins", "inner", "ends"]


def test_a_thing_is_made_once(folder: Path) -> None:
    values = [get_or_compute("graphs", "abc", lambda: time.monotonic()) for _ in range(2)]
    assert values[0] == values[1]


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
