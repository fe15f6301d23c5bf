"""The files of `suites/zoo`: what they may say, and which known failure belongs to a release."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core import paths
from harness.core.errors import UnfixError
from harness.core.outcomes import RunStatus, Verdict
from harness.runs.zoo.architecture import Architecture, KnownFailure, read_architectures
from harness.store.zoo.values import ArchitectureResult, ClaimResult, ZooClaim, ZooRun

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
    text = 'model_type: llama\nknown: {graph: {reason: old, at_most: 0.5, releases: ">=0.5.10"}}\n'
    one = read_one(tmp_path, text)
    known = one.find_known_failure("graph", "0.5.23")
    assert known is not None
    assert known.reason == "old"
    assert one.find_known_failure("graph", "0.5.9") is None
    assert one.find_known_failure("chunks", "0.5.23") is None


def test_a_claim_may_fail_otherwise_on_other_releases(tmp_path: Path) -> None:
    text = """model_type: llama
known:
  graph: [{reason: older, at_most: 0.9, releases: "<0.5.10"}, {reason: newer, at_most: 0.1}]
"""
    one = read_one(tmp_path, text)
    found = [one.find_known_failure("graph", release) for release in ("0.5.9", "0.5.10")]
    assert [known.reason for known in found if known] == ["older", "newer"]


def test_another_failure_of_the_claim_is_not_the_known_one() -> None:
    def fail(headline: str, error: float | None = None) -> ClaimResult:
        return ClaimResult(ZooClaim.GRAPH, Verdict.FAILS, headline, error)

    measured, worded = KnownFailure("stale", at_most=0.5), KnownFailure("stale", says="no window")
    assert measured.explains(fail("off by 0.4", 0.4))
    assert not measured.explains(fail("off by 0.6", 0.6))
    assert not measured.explains(fail("KeyError: 'window'"))
    assert worded.explains(fail("AssertionError: no window_kv_indices"))
    assert not worded.explains(fail("KeyError: 'window'"))
    assert not worded.explains(fail("off by 0.6: no window", 0.6))


def test_an_error_near_the_tolerance_keeps_its_reason() -> None:
    def hold(error: float | None) -> ClaimResult:
        return ClaimResult(ZooClaim.REFERENCE, Verdict.HOLDS, "", error, 2e-5)

    measured, worded = KnownFailure("experts", at_most=3e-5), KnownFailure("old", says="no window")
    assert measured.is_still_measured(hold(1.9e-5))
    assert not measured.is_still_measured(hold(5e-7))  # what is left is rounding
    assert not worded.is_still_measured(hold(1.9e-5))
    assert not measured.is_still_measured(hold(None))


@pytest.mark.parametrize(
    "known",
    [
        "graphs: {reason: stale, at_most: 1}",
        "graph: {reason: stale, at_most: 1, releases: newest}",
        "graph: {reason: stale}",
        "graph: [{reason: all, at_most: 1}, {reason: old, at_most: 1, releases: '<0.5.10'}]",
    ],
)
def test_a_known_failure_names_a_claim_and_a_range(tmp_path: Path, known: str) -> None:
    with pytest.raises(
        UnfixError, match=r"one.yaml:2: (no claim|releases is a range|a known|only the last)"
    ):
        read_one(tmp_path, f"model_type: llama\nknown: {{{known}}}\n")


def test_the_page_of_a_known_failure_is_there() -> None:
    for architecture in read_architectures([]):
        for claim in architecture.known:
            for known in architecture.list_known_failures(claim):
                page = known.reason.split()[0]
                assert not page.startswith("docs/") or (paths.project_folder() / page).is_file()


def make_zoo_run(*claims: ClaimResult) -> ZooRun:
    one = ArchitectureResult("one", list(claims))
    run = ZooRun(id="1", started="", release="0.5.23", card="H100", status=RunStatus.FINISHED)
    run.planned, run.architectures = ["one"], [one]
    return run


HOLDING = [ClaimResult(claim, Verdict.HOLDS) for claim in ZooClaim]


def test_a_claim_of_which_nothing_is_known_is_red() -> None:
    assert make_zoo_run(*HOLDING).green
    assert make_zoo_run(*HOLDING[:-1]).problems == [
        "one: memory checks: not tested: it has no result"
    ]
    refused = ClaimResult(ZooClaim.MEMORY, Verdict.UNTESTED, "not computed here: wide: x")
    assert make_zoo_run(*HOLDING[:-1], refused).problems == [
        "one: memory checks: not tested: not computed here: wide: x"
    ]


def test_what_does_not_start_is_red_once() -> None:
    failed = ClaimResult(ZooClaim.STARTS, Verdict.FAILS, "KeyError: 'x'")
    assert make_zoo_run(failed).problems[:1] == ["one: starts: KeyError: 'x'"]
    assert len([each for each in make_zoo_run(failed).problems if each.startswith("one")]) == 1


def test_a_failure_is_not_known_where_the_fix_of_its_finding_is_enabled(tmp_path: Path) -> None:
    page = "docs/findings/gptj-bias.md"
    text = f"""model_type: llama
known:
  graph: {{reason: {page}, at_most: 0.5}}
  chunks: [{{reason: {page}, releases: "<0.5.10", says: x}}, {{reason: other, says: y}}]
"""
    one = read_one(tmp_path, text).drop_known_failures([page])
    found = [one.find_known_failure(claim, "0.5.9") for claim in ("graph", "chunks")]
    assert [known and known.reason for known in found] == [None, "other"]
