"""A cached value is read again under the same key and the same code, and under no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fixture_types import Patch
from memory import write_toggle

from harness.core import cache, paths
from harness.core.cache import DiskCache
from harness.core.source_scopes import ModuleSource
from harness.fixes.matching import toggle_status
from harness.fixes.matching.status_cache import StatusCache
from harness.fixes.matching.toggle_status import ToggleState as State
from harness.fixes.matching.toggle_status import ToggleStatus
from harness.fixes.registry import toggle_catalogue
from harness.fixes.registry.schema import Toggle


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.setenv("UNFIX_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(cache, "_LOADED_VALUES", {})
    paths.state_folder().mkdir(parents=True)
    return tmp_path


def cache_files() -> list[Path]:
    return sorted((paths.state_folder() / "cache").iterdir())


def test_what_is_kept_is_there_the_next_time_and_gone_with_the_code() -> None:
    first: DiskCache[int] = DiskCache("n", int, "one")
    first.put("key", 3)
    first.save()
    cache._LOADED_VALUES.clear()
    assert DiskCache("n", int, "one").get("key") == 3
    second: DiskCache[int] = DiskCache("n", int, "two")
    assert second.get("key") is None
    second.put("key", 4)
    second.save()
    assert len(cache_files()) == 1


@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"\x81\xa3key\xa4text"])
def test_a_file_that_says_nothing_of_use_costs_time_alone(content: bytes) -> None:
    one: DiskCache[int] = DiskCache("n", int, "")
    one.put("key", 3)
    one.save()
    cache_files()[0].write_bytes(content)
    cache._LOADED_VALUES.clear()
    assert DiskCache("n", int, "").get("key") is None


def test_a_folder_that_cannot_be_written_costs_time_alone() -> None:
    (paths.state_folder() / "cache").write_text("a file, where a folder should be")
    one: DiskCache[int] = DiskCache("n", int, "")
    one.put("key", 3)
    one.save()
    assert one.get("key") == 3


@pytest.fixture
def folder(home: Path, monkeypatch: Patch) -> Path:
    """The toggles' folder, with one toggle in it."""
    folder = home / "toggles"
    write_toggle(folder, "one", "toy:f", "a + 1", "a - 1")
    monkeypatch.setattr(paths, "toggles_folder", lambda: folder)
    return folder


def test_a_changed_toggle_file_is_read_again(folder: Path, monkeypatch: Patch) -> None:
    file = folder / "one.yaml"
    assert [t.title for t in toggle_catalogue.load_catalogue()] == ["t"]
    file.write_text(file.read_text().replace('"t"', '"Two"'))
    assert [t.title for t in toggle_catalogue.load_catalogue()] == ["Two"]
    monkeypatch.setattr(toggle_catalogue, "read_toggle", None)  # no file is read any more
    assert [t.title for t in toggle_catalogue.load_catalogue()] == ["Two"]


class Texts:
    """A release of one module."""

    version = None

    def __init__(self, text: str) -> None:
        self._one = ModuleSource("toy", "toy.py", text)

    def read(self, module: str) -> ModuleSource | None:
        return self._one if module == "toy" else None

    def modules(self) -> Iterator[str]:
        yield "toy"

    def cpp_sources(self) -> Iterator[str]:
        return iter(())


def test_the_state_in_a_changed_source_is_found_again(folder: Path, monkeypatch: Patch) -> None:
    toggles = list(toggle_catalogue.load_catalogue())
    requests = []

    def find(toggle: Toggle, texts: Texts) -> ToggleStatus:
        requests.append(texts)
        return toggle_status.find_toggle_status(toggle, texts)

    def state(expression: str) -> State:
        texts = Texts(f"def f(a):\n    return {expression}\n")
        (found,) = StatusCache("n", find).find_statuses(toggles, texts)
        return found.state

    assert (state("a + 1"), state("a - 1")) == (State.FIXED, State.BUGGY)
    assert (state("a + 1"), state("a - 1"), len(requests)) == (State.FIXED, State.BUGGY, 2)
    assert (state("a"), state("a"), len(requests)) == (State.STALE, State.STALE, 4)
