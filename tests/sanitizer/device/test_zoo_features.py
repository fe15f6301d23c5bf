"""Answers with features beside the plain ones, and which of several features a difference is of."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.core.outcomes import Verdict
from harness.runs.zoo import feature_forks
from harness.runs.zoo.architecture import Architecture, KnownFailure
from harness.runs.zoo.feature_forks import BATCH_FILE, FeatureForks
from harness.runs.zoo.feature_run import (
    FeatureOutcome,
    FeatureRun,
    PlainAnswers,
    StoredAnswer,
    compare_answers,
    is_refusal,
)
from harness.runs.zoo.features import Feature, FeatureAxes
from harness.store.zoo.values import ArchitectureResult, FeatureResult

TOLERANCE = 1e-3
LOGPROBS = [-0.5, -1.0, -4.0]


def make_answer(tokens: list[int], logprobs: list[list[float]] | None = None) -> StoredAnswer:
    return StoredAnswer(tokens, ["length"], logprobs or [list(LOGPROBS) for _ in tokens])


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (make_answer([0, 0]), ""),
        (make_answer([0, 0], [LOGPROBS, [-0.502, -1.0, -4.0]]), ""),  # rounding
        (make_answer([0, 0], [LOGPROBS, [-0.52, -1.0, -4.0]]), "token 1 of request 0 is off by"),
        (make_answer([0, 0], [LOGPROBS, [float("nan"), -1.0, -4.0]]), "is off by inf"),
        (make_answer([0, 1]), "token 1 of request 0 is not its likeliest one"),
        (make_answer([0]), "request 0 has 1 tokens"),
        (StoredAnswer([0, 0], ["abort"], [LOGPROBS] * 2), "ends by ['abort']"),
        (StoredAnswer([0, 0], ["length"], [LOGPROBS]), "log-probabilities of 1 tokens"),
        (StoredAnswer([0, 0], ["length"], []), ""),
        (StoredAnswer([0, 1], ["length"], []), "token 1 of request 0 is not its likeliest one"),
    ],
)
def test_an_answer_that_differs_is_named_with_its_token(other: StoredAnswer, words: str) -> None:
    _, difference = compare_answers([make_answer([0, 0])], [other], TOLERANCE)
    assert words in difference
    assert bool(words) == bool(difference)


def test_tokens_behind_a_near_tie_are_not_compared() -> None:
    near, other = [-0.5, -0.5001, -4.0], [-0.5, -3.0, -4.0]
    plain, tied = make_answer([0, 2], [near, LOGPROBS]), make_answer([1, 0], [near, other])
    assert compare_answers([plain], [tied], TOLERANCE)[1] == ""


def test_a_refusal_is_what_sglang_says_and_no_crash() -> None:
    def raise_words(words: str) -> Exception:
        try:
            raise ValueError(words)
        except ValueError as error:
            return error

    assert is_refusal(raise_words("EAGLE is not supported in this backend"))
    assert not is_refusal(raise_words("mat1 and mat2 shapes cannot be multiplied"))


AXES = {
    "a": {"a0": Feature(), "a1": Feature()},
    "b": {"b0": Feature(), "b1": Feature()},
    "c": {"c0": Feature(), "c1": Feature()},
}
Verdicts = dict[frozenset[str], Verdict]


def cover_features(
    monkeypatch: pytest.MonkeyPatch, folder: Path, bad: Verdicts, wanted: str, first: float = -1.0
) -> Verdicts:
    """Run all features of a row on which these tuples do not equal, and what has them."""
    monkeypatch.setattr(FeatureAxes, "read", lambda: FeatureAxes(dict(AXES)))
    logits = torch.tensor([[-0.5, -1.0, -4.0]])
    torch.save(([logits], TOLERANCE, [[7]]), folder / BATCH_FILE)
    logprobs = torch.log_softmax(torch.tensor([-0.5, first, -4.0]), -1).tolist()
    forks = FeatureForks(Architecture("one"), folder, folder, 1.0, (), wanted)

    def find_outcome(combination: frozenset[str]) -> FeatureOutcome:
        found = (verdict for names, verdict in bad.items() if names <= combination)
        return FeatureOutcome(
            FeatureResult(sorted(combination), next(found, Verdict.EQUAL), "why", 0.0),
            [make_answer([0], [logprobs])],
        )

    monkeypatch.setattr(forks, "_run_fork", find_outcome)
    row = ArchitectureResult("one")
    forks.add_to(row)
    return {frozenset(one.features): one.verdict for one in row.features}


def test_a_difference_is_named_by_the_features_that_it_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bad = {
        frozenset({"a1", "b1"}): Verdict.DIFFERS,
        frozenset({"c1"}): Verdict.REFUSED,
    }
    found = cover_features(monkeypatch, tmp_path, bad, "pairs")
    assert found.pop(frozenset({"plain server"})) is Verdict.EQUAL
    equal = {frozenset({"a1"}), frozenset({"b1"})}
    assert found == bad | dict.fromkeys(equal, Verdict.EQUAL)


def test_each_feature_alone_is_enough_for_a_run_of_each(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = cover_features(monkeypatch, tmp_path, {}, "each")
    assert set(found) == {frozenset({name}) for name in ("plain server", "a1", "b1", "c1")}


def test_a_plain_server_that_differs_ends_the_comparison(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ends = {frozenset({"plain server"}): Verdict.DIFFERS}
    assert cover_features(monkeypatch, tmp_path, {frozenset(): Verdict.DIFFERS}, "each") == ends
    assert (
        cover_features(monkeypatch, tmp_path, {}, "each", first=-1.1) == ends
    )  # from the row's batch


def test_a_known_failure_of_a_claim_explains_a_feature_of_its_path_up_to_its_size(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.5.23")
    known: Any = {"chunks": KnownFailure("docs/findings/x.md", at_most=0.1)}
    axes = FeatureAxes({"chunks": {"whole": Feature(), "chunk": Feature(claims=["chunks"])}})  # type: ignore[list-item]

    def find_verdict(tokens: list[int], logprob: float) -> Verdict:
        row = Architecture("one", known=known)
        run = FeatureRun(row, axes, frozenset({"chunk"}), tmp_path, [])
        run.tolerance = TOLERANCE
        run.answers = [make_answer(tokens, [[logprob, -1.0, -4.0]] * len(tokens))]
        return run._compare(PlainAnswers([make_answer([0])], TOLERANCE)).verdict

    assert [find_verdict([0], value) for value in (-0.5, -0.3, 0.5)] == [
        *(Verdict.EQUAL, Verdict.KNOWN, Verdict.DIFFERS)
    ]
    assert find_verdict([0, 0], -0.5) is Verdict.DIFFERS  # a token more is no error of any size


def test_a_known_failure_of_a_feature_is_known_by_its_words_on_its_releases(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known = [KnownFailure("docs/findings/x.md", releases=">=0.5.20", says="no attribute 'numel'")]
    axes = FeatureAxes({"draft": {"none": Feature(), "draft": Feature(known=known)}})
    run = FeatureRun(Architecture("one"), axes, frozenset({"draft"}), tmp_path, [])
    run.tolerance = TOLERANCE

    def find_verdict(headline: str, release: str) -> Verdict:
        monkeypatch.setattr(importlib.metadata, "version", lambda _: release)
        return run._explain(Verdict.DIFFERS, headline, None).verdict

    crash = "AttributeError: 'NoneType' object has no attribute 'numel'"
    assert find_verdict(crash, "0.5.23") is Verdict.KNOWN
    assert find_verdict(crash, "0.5.18") is Verdict.DIFFERS
    assert find_verdict("token 1 of request 0 is off by 0.1", "0.5.23") is Verdict.DIFFERS


def test_forks_that_die_are_differences(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torch.save(([], TOLERANCE, []), tmp_path / BATCH_FILE)
    monkeypatch.setattr(FeatureAxes, "read", lambda: FeatureAxes(dict(AXES)))
    end = SimpleNamespace(words="died of SIGSEGV", log="the end")
    monkeypatch.setattr(feature_forks, "compute_in_fork", lambda *_: (None, end))
    row = ArchitectureResult("one")
    FeatureForks(Architecture("one"), tmp_path, tmp_path, 1.0, (), "each").add_to(row)
    assert row.feature_problems == ["plain server: differs: died of SIGSEGV"]
