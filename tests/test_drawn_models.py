"""What lies in the tree of a model that is drawn is what its own code writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fixtures.models import characters, deepseek
from harness import paths

DRAWN = paths.project() / "fixtures" / "models" / "drawn" / "deepseek-v4"


def test_the_config_in_the_tree_is_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Writing a tokenizer needs a release's libraries; the next test looks at its words.
    monkeypatch.setattr(characters, "save", lambda folder: None)
    deepseek.write_v4(tmp_path / "new")
    assert (DRAWN / "config.json").read_text() == (tmp_path / "new" / "config.json").read_text()


def test_the_tokenizer_in_the_tree_has_the_words_of_ours() -> None:
    kept = json.loads((DRAWN / "tokenizer.json").read_text())
    words = [*characters.SPECIAL, *characters.shown()]
    assert kept["model"]["vocab"] == {word: number for number, word in enumerate(words)}
