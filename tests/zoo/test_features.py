"""Features of the zoo: which are combined, which words a server gets, and what is left over."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from harness.core.located_yaml import YamlFileError
from harness.core.outcomes import Verdict
from harness.runs.zoo.architecture import Architecture, read_architectures
from harness.runs.zoo.features import Feature, FeatureAxes, find_ignored_words
from harness.store.zoo.values import ArchitectureResult, FeatureResult, ZooRun
from reports.zoo import view

AXES = {
    "pages": {"page 1": Feature(), "page 16": Feature("--page-size 16"), "page 64": Feature()},
    "loop": {"in turn": Feature("--disable-overlap-schedule"), "overlap": Feature()},
    "type": {"its type": Feature(), "FP8": Feature(tolerance=0.1)},
    "draft": {"none": Feature(), "EAGLE": Feature("--draft MODEL"), "NGRAM": Feature(absent="no")},
    "window": {"pools": Feature(), "one pool": Feature(needs="sliding_window")},
}


@pytest.fixture
def axes() -> FeatureAxes:
    return FeatureAxes(AXES).select_for(Architecture("llama"))


def test_a_row_has_the_features_that_it_can_have(axes: FeatureAxes) -> None:
    assert set(axes.features) == {"page 16", "page 64", "overlap", "FP8", "EAGLE"}
    windows = FeatureAxes(AXES).select_for(
        Architecture("m", config={"text": {"sliding_window": 4}})
    )
    assert "one pool" in windows.features


def test_words_are_those_of_the_chosen_features_and_of_the_plain_server(axes: FeatureAxes) -> None:
    assert axes.list_words([], "/m") == ["--disable-overlap-schedule"]
    words = axes.list_words(["overlap", "page 16", "EAGLE"], "/m")
    assert words == ["--page-size", "16", "--draft", "/m"]


@pytest.mark.parametrize("strength", [1, 2])
def test_each_tuple_of_features_is_covered_unless_it_is_refused(
    axes: FeatureAxes, strength: int
) -> None:
    axes.refused[frozenset({"EAGLE", "page 64"})] = "why"
    covered = {
        names
        for combination in axes.plan_combinations(strength)
        for names in axes.list_covered(combination, strength)
    }
    axis_of = {name: axis for axis, values in AXES.items() for name in values}
    wanted = {
        frozenset(names)
        for size in range(1, strength + 1)
        for names in itertools.combinations(sorted(axes.features), size)
        if len({axis_of[name] for name in names}) == size
    } - axes.refused.keys()
    assert covered == wanted


def test_what_rounds_otherwise_covers_no_other_feature(axes: FeatureAxes) -> None:
    assert axes.list_covered(frozenset({"FP8", "overlap"}), 1) == [frozenset({"FP8"})]
    assert any(combination == {"FP8"} for combination in axes.plan_combinations(1))


def test_every_row_has_a_plan_of_the_projects_own_features() -> None:
    [row] = read_architectures(["gpt_oss"])
    axes = FeatureAxes.read().select_for(row)
    for combination in axes.plan_combinations(2):
        assert not any(refused <= combination for refused in axes.refused)
    assert "one pool" in axes.features


def test_a_refusal_of_an_unknown_feature_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    from harness.core import paths

    folder = paths.project_folder().__class__(str(tmp_path))
    (folder / "suites" / "zoo").mkdir(parents=True)
    file = folder / "suites" / "zoo" / "features.yaml"
    file.write_text("axes: {pages: {a: {}, b: {}}}\ntogether: {'b, c': why}\n")
    monkeypatch.setattr(paths, "project_folder", lambda: folder)
    with pytest.raises(YamlFileError, match="no feature is called c"):
        FeatureAxes.read()


def test_words_that_a_server_takes_back_are_named() -> None:
    settings = SimpleNamespace(page_size=1, enable_lora=True, modules={"a"}, chunk=None)
    words = ["--page-size 16", "--enable-lora", "--modules a", "--chunk -1"]
    assert find_ignored_words(settings, ["--page-size", "16", "--enable-lora"]) == [
        "--page-size 16 is 1 on the server"
    ]
    assert len(find_ignored_words(settings, words)) == 3


def test_a_pair_that_a_call_names_has_a_column(monkeypatch: pytest.MonkeyPatch) -> None:
    results = [
        FeatureResult(["overlap"], Verdict.EQUAL, error=0.0),
        FeatureResult(["LoRA", "page 16"], Verdict.DIFFERS, "row 3", error=0.1),
    ]
    row = ArchitectureResult("llama", features=results)
    run = ZooRun(id="1", started="", release="r", card="H100", architectures=[row])
    table, differences = view.make_feature_tables(run)
    assert table.heads == ("architecture", "overlap", "LoRA + page 16")
    texts = [getattr(cell, "text", cell) for cell in differences.rows[0]]
    assert texts == ["LoRA + page 16", "differs", "row 3", "llama"]
    assert view.describe_features(run) == "1 feature and 1 pair of them compared"
    monkeypatch.setattr(view, "MOST_PAIRS", 0)
    assert view.make_feature_tables(run)[0].heads == ("architecture", "overlap")
