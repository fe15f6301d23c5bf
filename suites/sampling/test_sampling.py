"""Which tokens a request may get, and what its earlier tokens change.

THE INVARIANTS IN PLAIN WORDS

1. The sampler keeps the `top_k` likeliest tokens; of these the ones before which less than `top_p`
   has been taken, the likeliest always; of these the ones with `min_p` of the likeliest.
2. A request's penalties count its own tokens, whoever joins its batch or leaves it: a frequency
   penalty each time, a presence penalty once, a repetition penalty as a factor.
"""

from __future__ import annotations

import importlib
import warnings
from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st


def import_sampling() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SGLang's own, which pytest's settings may make errors
        importlib.import_module("sglang.srt.layers.sampler")
        importlib.import_module("sglang.srt.sampling.penaltylib")


pytestmark = pytest.mark.before_forks(ready=import_sampling)


@pytest.fixture(autouse=True, scope="module")
def _the_import_is_no_part_of_an_example() -> None:
    import_sampling()


VOCABULARY = 12
NEUTRAL = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0}
KINDS = ("Frequency", "Presence", "Repetition")  # the last came with 0.5.12
PENALTIES = {"frequency_penalty": 0.5, "presence_penalty": 0.75, "repetition_penalty": 1.5}


@dataclass(frozen=True)
class SampledRow:
    """The weights of a row's tokens, and its limits. Shares of 64 are exact."""

    weights: tuple[int, ...]
    count: int
    share: float
    least: float

    def make_probabilities(self) -> torch.Tensor:
        return torch.tensor(self.weights) / 64

    def list_kept(self) -> list[float]:
        ordered, taken, kept = sorted(self.weights, reverse=True), 0.0, []
        for rank, weight in enumerate(ordered):
            is_likely = weight / 64 >= self.least * ordered[0] / 64
            kept.append(
                weight / 64 if rank < self.count and taken <= self.share and is_likely else 0.0
            )
            taken += weight / 64
        return kept


@st.composite
def draw_rows(draw: st.DrawFn) -> SampledRow:
    cuts = sorted(
        draw(st.lists(st.integers(0, 64), min_size=VOCABULARY - 1, max_size=VOCABULARY - 1))
    )
    weights = [end - start for start, end in zip([0, *cuts], [*cuts, 64], strict=True)]
    share = draw(st.integers(0, 63)) / 64 + 1 / 128
    least = draw(st.sampled_from((0.0, 0.3, 0.7)))
    return SampledRow(tuple(weights), draw(st.integers(1, VOCABULARY)), share, least)


@given(rows=st.lists(draw_rows(), min_size=1, max_size=4))
def test_the_sampler_keeps_what_its_limits_allow(rows: list[SampledRow]) -> None:
    from sglang.srt.layers import sampler

    kept: list[torch.Tensor] = []

    def choose(weights: torch.Tensor, num_samples: int) -> torch.Tensor:
        kept.append(weights.clone())
        return torch.zeros(len(weights), num_samples, dtype=torch.int64)

    limits = [
        torch.tensor([row.count for row in rows]),
        torch.tensor([row.share for row in rows]),
        torch.tensor([row.least for row in rows]),
    ]
    probabilities = torch.stack([row.make_probabilities() for row in rows])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "multinomial", choose)
        likeliest = sampler.top_k_top_p_min_p_sampling_from_probs_torch(
            probabilities, *limits, True, None, None
        )
    assert kept[0].tolist() == [row.list_kept() for row in rows]
    for row, token in zip(rows, likeliest.tolist(), strict=True):
        assert row.weights[token] == max(row.weights)


@dataclass(eq=False)
class PenalizedBatch:
    """The requests of a batch, each with one kind of penalty."""

    names: list[str]
    device: str = "cpu"

    @property
    def reqs(self) -> list[Any]:
        parameters = [SimpleNamespace(**(NEUTRAL | {one: PENALTIES[one]})) for one in self.names]
        return [SimpleNamespace(sampling_params=each) for each in parameters]


def penalize_logits(logits: torch.Tensor, name: str, tokens: list[int]) -> torch.Tensor:
    expected, penalty = logits.clone(), PENALTIES[name]
    for token, count in Counter(tokens).items():
        if name == "repetition_penalty":
            expected[token] = (
                logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
            )
        else:
            expected[token] -= penalty * (count if name == "frequency_penalty" else 1)
    return expected


@given(data=st.data())
def test_penalties_count_a_requests_own_tokens_whoever_joins_and_leaves(
    data: st.DataObject,
) -> None:
    from sglang.srt.sampling import penaltylib

    kinds = [f"Batched{kind}Penalizer" for kind in KINDS]
    known = {kind: getattr(penaltylib, name) for kind, name in zip(KINDS, kinds, strict=True)
             if hasattr(penaltylib, name)}  # fmt: skip
    names = st.lists(
        st.sampled_from([f"{kind.lower()}_penalty" for kind in known]), min_size=1, max_size=3
    )
    first, second = PenalizedBatch(data.draw(names)), PenalizedBatch(data.draw(names))
    whole = [*first.names, *second.names]
    leaving = data.draw(st.integers(0, len(whole) - 1))
    tokens: list[list[int]] = [[] for _ in whole]
    penalizer, joining = (
        penaltylib.BatchedPenalizerOrchestrator(VOCABULARY, batch, {*known.values()})
        for batch in (first, second)
    )

    def draw_step(orchestrator: Any, lists: list[list[int]]) -> None:
        step = [data.draw(st.integers(0, VOCABULARY - 1)) for _ in lists]
        for each, token in zip(lists, step, strict=True):
            each.append(token)
        orchestrator.cumulate_output_tokens(torch.tensor(step))

    size = len(first.names)
    for _ in range(2):
        draw_step(penalizer, tokens[:size])
        draw_step(joining, tokens[size:])
    penalizer.merge(joining)
    first.names = list(whole)
    draw_step(penalizer, tokens)
    staying = [number for number in range(len(whole)) if number != leaving]
    first.names = [whole[number] for number in staying]
    penalizer.filter(torch.tensor(staying))
    logits = torch.linspace(-2, 3, VOCABULARY).repeat(len(staying), 1)
    expected = [penalize_logits(logits[0], whole[number], tokens[number]) for number in staying]
    penalizer.apply(logits)
    torch.testing.assert_close(logits, torch.stack(expected))
