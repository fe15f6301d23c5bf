"""What is kept between runs is found again by what it was made of, and by nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from harness import paths, remembered
from harness.matching import states
from harness.matching.known import Known
from harness.matching.states import Finding, State
from harness.registry import catalogue
from harness.registry.schema import Toggle
from harness.remembered import Remembered, code_of, digest
from harness.syntax.scopes import ModuleSource

TOGGLE = """\
id: one
title: One
family: toy
symptom: crash
devices: [cpu]
variants:
  - releases: ">=1"
    target: toy:f
    edits:
      - fixed: a + 1
        buggy: a - 1
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNFIX_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(remembered, "_HELD", {})
    paths.state().mkdir(parents=True)
    return tmp_path


def kept() -> list[Path]:
    return sorted((paths.state() / "remembered").iterdir())


def test_the_borders_of_what_it_was_made_of_count() -> None:
    assert digest("ab", "c") != digest("a", "bc") != digest("abc")
    assert digest("ab", "c") == digest(b"ab", "c")


def test_code_is_what_its_files_and_versions_say(home: Path) -> None:
    module = ModuleType("code")
    module.__file__ = str(home / "code.py")
    said = []
    for text, version in (("one", "1"), ("two", "1"), ("two", "2"), ("two", "2")):
        (home / "code.py").write_text(text)
        said.append(code_of(module, versions=[version]))
    assert (len(set(said)), said[2]) == (3, said[3])


def test_what_is_kept_is_there_the_next_time_and_gone_with_the_code() -> None:
    first: Remembered[int] = Remembered("n", int, "one")
    first.put("key", 3)
    first.keep()
    remembered._HELD.clear()
    assert Remembered("n", int, "one").get("key") == 3
    second: Remembered[int] = Remembered("n", int, "two")
    assert second.get("key") is None
    second.put("key", 4)
    second.keep()
    assert len(kept()) == 1


@pytest.mark.parametrize("said", [b"", b"\xff\x00", b"\x81\xa3key\xa4text"])
def test_a_file_that_says_nothing_of_use_costs_time_alone(said: bytes) -> None:
    one: Remembered[int] = Remembered("n", int, "")
    one.put("key", 3)
    one.keep()
    kept()[0].write_bytes(said)
    remembered._HELD.clear()
    assert Remembered("n", int, "").get("key") is None


def test_a_folder_that_cannot_be_written_costs_time_alone() -> None:
    (paths.state() / "remembered").write_text("a file, where a folder should be")
    one: Remembered[int] = Remembered("n", int, "")
    one.put("key", 3)
    one.keep()
    assert one.get("key") == 3


def test_nothing_is_left_where_nothing_was_run() -> None:
    paths.state().rmdir()
    one: Remembered[int] = Remembered("n", int, "")
    one.put("key", 3)
    one.keep()
    assert not paths.state().exists()


@pytest.fixture
def folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The toggles' folder, with one in it."""
    folder = home / "toggles"
    folder.mkdir()
    (folder / "one.yaml").write_text(TOGGLE)
    monkeypatch.setattr(paths, "toggles", lambda: folder)
    return folder


def test_a_toggle_file_is_read_again_once_it_says_something_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [t.title for t in catalogue.load()] == ["One"]
    (folder / "one.yaml").write_text(TOGGLE.replace("One", "Two"))
    assert [t.title for t in catalogue.load()] == ["Two"]
    monkeypatch.setattr(catalogue, "read_toggle", None)  # nobody asks it any more
    assert [t.title for t in catalogue.load()] == ["Two"]


class Texts:
    """A release of one module."""

    version = None

    def __init__(self, text: str) -> None:
        self._one = ModuleSource("toy", "toy.py", text)

    def read(self, module: str) -> ModuleSource | None:
        return self._one if module == "toy" else None

    def modules(self) -> Iterator[str]:
        yield "toy"


def test_a_state_is_found_again_once_the_source_says_something_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toggles = list(catalogue.load())
    asked = []

    def find(toggle: Toggle, texts: Texts) -> Finding:
        asked.append(texts)
        return states.find(toggle, texts)

    def state(expression: str) -> State:
        texts = Texts(f"def f(a):\n    return {expression}\n")
        (found,) = Known("n", find, "").find(toggles, texts)
        return found.state

    assert (state("a + 1"), state("a - 1")) == (State.FIXED, State.BUGGY)
    assert (state("a + 1"), state("a - 1"), len(asked)) == (State.FIXED, State.BUGGY, 2)
    assert (state("a"), state("a"), len(asked)) == (State.STALE, State.STALE, 4)
