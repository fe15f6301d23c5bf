"""The positions at which EAGLE's draft reads its tokens.

After a prefix of L tokens a draft reads its own tokens at positions L, L + 1, and so on. In plain
words:

- The i-th forward of a draft reads each branch's token at position L + i, from i = 0: right behind
  the prefix. That holds for a tree and for a chain, and for every way of picking tokens.
- So a chain drafts the model's own predictions, one token at a time, each at its position.
- A CUDA graph runs the draft over the same buffers repeatedly: each run starts from the positions,
  tokens and hidden states in the buffers, as the first did.
- Drafting requests together gives the same result as drafting each alone.

The draft model is a stand-in that records the positions of its inputs.
"""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import assume, given

from fixtures import draft_graph
from fixtures import draft_positions as adapter
from fixtures.reference_drafts import EagleDraft
from harness import checking


@pytest.mark.guards("25015")
@given(draft=adapter.drafts())
def test_each_token_is_read_at_its_own_place(draft: EagleDraft) -> None:
    with checking.checked() as check:
        drafted = adapter.run_draft(draft, check.device)
    assert drafted.places == draft.places


@pytest.mark.guards("25015")
@given(draft=adapter.drafts(modes=("chain", "kernel")))
def test_a_chain_is_the_model_asked_one_token_at_a_time(draft: EagleDraft) -> None:
    with checking.checked() as check:
        drafted = adapter.run_draft(draft, check.device)
    assert drafted.tokens == [draft.compute_chain(request) for request in range(len(draft.lengths))]


@pytest.mark.guards("25015")
@given(draft=adapter.drafts(modes=("chain", "kernel", "tree")))
def test_each_run_of_a_graph_reads_at_the_places_of_its_buffers(draft: EagleDraft) -> None:
    assume(draft.is_unambiguous)
    with checking.checked() as check:
        forwards = draft_graph.capture_forwards(draft, check.device)
    assert [forward.places for forward in forwards] == draft.places * draft_graph.RUN_COUNT
    assert forwards == draft.forwards * draft_graph.RUN_COUNT


@given(draft=adapter.drafts(modes=("chain", "kernel", "tree")))
def test_drafting_together_is_drafting_each_alone(draft: EagleDraft) -> None:
    with checking.checked() as check:
        together = adapter.run_draft(draft, check.device)
        alone = [
            adapter.run_draft(dataclasses.replace(draft, lengths=(length,)), check.device)
            for length in draft.lengths
        ]
    assert together.tokens == [one.tokens[0] for one in alone]
    for step, places in enumerate(together.places):
        assert places == [place for one in alone for place in one.places[step]]
