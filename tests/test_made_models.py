"""Models in the tree that are generated, not trained, equal the output of their code."""

from __future__ import annotations

import filecmp
import json
import shutil
from pathlib import Path

from fixtures.models import characters
from harness.cli.main import main
from harness.core import paths

MODELS = paths.project_folder() / "fixtures" / "models"
DRAWN = MODELS / "drawn" / "deepseek-v4"


def test_the_tokenizer_in_the_tree_has_the_words_of_ours() -> None:
    expected = json.loads((DRAWN / "tokenizer.json").read_text())
    words = [*characters.SPECIAL, *characters.list_byte_letters()]
    assert expected["model"]["vocab"] == {word: number for number, word in enumerate(words)}


def test_the_model_of_experts_is_made_of_the_one_that_was_trained(tmp_path: Path) -> None:
    shutil.copytree(MODELS / "trained" / "llama", tmp_path / "llama")
    words = ["python", "-m", "fixtures.models.experts", "--out", str(tmp_path)]
    assert main(["exec", "--release", "0.5.18", "--", *words]) == 0
    expected = MODELS / "trained" / "mixtral"
    names = [file.name for file in expected.iterdir()]
    found = filecmp.cmpfiles(expected, tmp_path / "mixtral", names, False)
    assert (len(found[0]), found[1:]) == (5, ([], []))
