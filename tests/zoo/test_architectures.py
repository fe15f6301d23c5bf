"""The files of `suites/zoo`: what they may say, and which known failure belongs to a release."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core import paths
from harness.core.errors import UnfixError
from harness.runs.zoo.architecture import Architecture, read_architectures

BASES = "common: {hidden_size: 128, head_dim: 32}\nmoe: {num_experts: 8}\n"


def read_one(folder: Path, text: str) -> Architecture:
    (folder / "architectures").mkdir()
    (folder / "bases.yaml").write_text(BASES)
    (folder / "architectures" / "one.yaml").write_text(text)
    return read_architectures(["one"], folder)[0]


def test_an_architectures_own_keys_replace_those_of_its_bases(tmp_path: Path) -> None:
    text = "model_type: llama\nbases: [moe]\nconfig: {num_experts: 4}\n"
    assert read_one(tmp_path, text).config == {
        "hidden_size": 128,
        "head_dim": 32,
        "num_experts": 4,
    }


def test_a_known_failure_belongs_to_its_releases(tmp_path: Path) -> None:
    text = 'model_type: llama\nknown: {graph: {reason: stale, releases: ">=0.5.10"}}\n'
    one = read_one(tmp_path, text)
    assert one.find_known_reason("graph", "0.5.23") == "stale"
    assert one.find_known_reason("graph", "0.5.9") is None
    assert one.find_known_reason("chunks", "0.5.23") is None


@pytest.mark.parametrize(
    "known", ["graphs: {reason: stale}", "graph: {reason: stale, releases: newest}"]
)
def test_a_known_failure_names_a_claim_and_a_range(tmp_path: Path, known: str) -> None:
    with pytest.raises(UnfixError, match=r"one.yaml:2: (no claim|releases is a range)"):
        read_one(tmp_path, f"model_type: llama\nknown: {{{known}}}\n")


def test_the_page_of_a_known_failure_is_there() -> None:
    for architecture in read_architectures([]):
        for known in architecture.known.values():
            page = known.reason.split()[0]
            assert not page.startswith("docs/") or (paths.project_folder() / page).is_file()
