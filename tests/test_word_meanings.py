"""Each command says what it takes a word of its call for: one word can be several things."""

from __future__ import annotations

import pytest
from memory import Memory

from harness.cli import guard_runs, options
from harness.fixes.registry.toggle_catalogue import ToggleCatalogue, load_catalogue
from harness.runs.mutate import target_selection


@pytest.fixture(scope="module")
def catalogue() -> ToggleCatalogue:
    return load_catalogue()


def test_a_word_is_a_toggle_a_family_a_pr_or_a_glob(catalogue: ToggleCatalogue) -> None:
    family = sum(toggle.family == "kv_indices" for toggle in catalogue)
    glob = sum(toggle.id.startswith("27") for toggle in catalogue)
    assert catalogue.describe_match("27460") == "a toggle"
    assert catalogue.describe_match("kv_indices") == f"a family of {family} toggles"
    assert catalogue.describe_match("27*") == f"a glob for {glob} toggles"
    assert catalogue.describe_match("25418").startswith("a PR with")
    assert catalogue.describe_match("moe_kernels_of_nobody") == ""


def test_prove_takes_a_family_for_its_toggles(
    catalogue: ToggleCatalogue, capsys: pytest.CaptureFixture[str]
) -> None:
    options.select_toggles_or_all(catalogue, ["kv_indices", "27460"], "")
    messages = capsys.readouterr().err
    assert "'kv_indices' is a family of" in messages
    assert "27460" not in messages, "an id is a toggle and nothing else"


def test_fuzz_takes_the_same_word_for_a_suite(capsys: pytest.CaptureFixture[str]) -> None:
    guard_runs.report_suites(["kv_indices"])
    assert "'kv_indices' is the suite suites/kv_indices" in capsys.readouterr().err


def test_mutate_takes_it_for_functions(catalogue: ToggleCatalogue) -> None:
    words = ["kv_indices", "sglang.srt.mem_cache.radix_cache", "sglang.srt.mem_cache.radix_cache:f"]
    sources = Memory({"sglang.srt.mem_cache.radix_cache": "def f(): pass\n"})
    family, module, function = target_selection.describe_words(words, sources, catalogue).values()
    assert family.startswith("a family of")
    assert "the functions that are changed" in family
    assert module == "a module"
    assert function == "a function of the module sglang.srt.mem_cache.radix_cache"
