"""How a model is spread over ranks, and which failures are known of a way to spread it."""

from __future__ import annotations

from typing import Any

import pytest

from harness.core.errors import UnfixError
from harness.core.outcomes import Verdict
from harness.runs.zoo.architecture import Architecture, KnownFailure
from harness.runs.zoo.rank_layout import RankLayout
from harness.store.zoo.values import ArchitectureResult, ClaimResult, ZooClaim, list_claims


def test_each_data_parallel_rank_has_a_batch_of_its_own() -> None:
    layout = RankLayout(tp=4, dp=2, enable_dp_attention=True)
    assert [layout.find_batch(rank) for rank in range(layout.count)] == [0, 0, 1, 1]
    assert str(layout) == "tp 4, dp attention 2"
    assert layout.list_server_words()[:4] == ["--tp-size", "4", "--dp-size", "2"]


def test_idle_ranks_are_claimed_of_data_parallel_ones_alone() -> None:
    layout = RankLayout(tp=2, dp=2, enable_dp_attention=True)
    assert layout.claims == (ZooClaim.RANKS, ZooClaim.IDLE)
    assert set(layout.claims) < set(list_claims(str(layout)))
    assert ZooClaim.IDLE not in {*RankLayout(tp=2).claims, *list_claims("tp 2"), *list_claims("")}


def test_ranks_that_end_at_their_first_batch_leave_no_claim_untested() -> None:
    layout = RankLayout(tp=2, dp=2, enable_dp_attention=True)
    claims = [ClaimResult(claim, Verdict.HOLDS) for claim in list_claims("tp 2")]
    result = ArchitectureResult("qwen2", claims, ranks=str(layout))
    assert result.claims_without_result == ["idle ranks: not tested: it has no result"]
    claims[2].verdict = Verdict.KNOWN
    assert result.claims_without_result == []


def test_the_last_stage_has_the_logits() -> None:
    layout = RankLayout(tp=2, pp=2)
    assert [layout.is_last_stage(rank) for rank in range(4)] == [False, False, True, True]


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"tp": 0}, "--tp is a number of ranks, not 0"),
        ({"tp": 4, "ep": 3}, "--ep 3 does not divide --tp 4"),
        ({"tp": 2, "dp": 2}, "--dp and --enable-dp-attention go together"),
        ({"tp": 2, "enable_dp_attention": True}, "go together"),
        ({"tp": 8, "pp": 2}, "16 ranks are more than 8"),
    ],
)
def test_a_layout_that_no_server_has_is_refused(sizes: dict[str, Any], words: str) -> None:
    with pytest.raises(UnfixError, match=words):
        RankLayout(**sizes)


def test_a_reason_of_one_layout_is_none_of_another() -> None:
    stages = KnownFailure("SGLang refuses stages", says="Pipeline", ranks="pp 2")
    rounding = KnownFailure("rounding", at_most=1e-4)
    one = Architecture("phi", known={"several ranks": [stages, rounding]})
    assert one.find_known_failure("several ranks", "0.5.23", "pp 2") is stages
    assert one.find_known_failure("several ranks", "0.5.23", "tp 2") is rounding
