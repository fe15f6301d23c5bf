"""All inputs and results of a draft, compared with the tree that it should grow.

THE INVARIANTS IN PLAIN WORDS

1. Each forward reads the tokens that grew on, each at its position, with the hidden state of the
   token before it. Its keys go to the slots of its own branch and step, with its step's attention.
   A model with positions in time, height and width receives all three, and one whose attention
   needs contiguous slots gets them so.
2. The final draft is the likeliest of all proposed tokens, in the target's vocabulary. Parents are
   numbered over all proposals.
3. The tree does not depend on the way of picking tokens, the device, or the number of requests. A
   chain's tree is a chain.
4. If all requests want the best token, nothing is sampled, and no probabilities are passed on.
5. If tokens are sampled, the probabilities that are passed on are the model's own after each token,
   at the request's temperature, after the initial ones. With a seed a token's sample depends on the
   position where the token will stand, and on its number in the draft.
6. A rank without requests runs as many forwards as the others, each with its step's attention.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given

from fixtures import draft_features
from fixtures import draft_positions as adapter
from fixtures.reference_drafts import EagleDraft, name_backend
from harness import checking
from harness.guards import skip_not_applicable

TOLD_APART = EagleDraft(
    lengths=(5, 9),
    steps=4,
    has_hot_vocabulary=True,
    packed=adapter.HAS_PACKED,
    spatial=adapter.HAS_SPATIAL,
)
HOT_TREE = EagleDraft(
    lengths=(4, 9, 63),
    steps=4,
    topk=3,
    mode="tree",
    verified_tokens=7,
    has_hot_vocabulary=True,
    on_gpu=True,
)
MANY = EagleDraft(
    lengths=(1, 2, 3), steps=3, mode="kernel" if "kernel" in adapter.SELECTION_MODES else "chain"
)


@pytest.mark.guards("25015")
@given(draft=adapter.whole_drafts())
@example(draft=TOLD_APART)
@example(draft=HOT_TREE)
@example(draft=MANY)
def test_a_draft_is_the_best_of_the_tree_that_it_grows(draft: EagleDraft) -> None:
    with checking.checked() as check:
        drafted = adapter.run_draft(draft, check.device)
    assert drafted.forwards == draft.forwards
    best = [tree.choose_draft(draft.draft_length) for tree in draft.trees]
    assert drafted.tokens == [[leaf.token for leaf in leaves] for leaves in best]
    assert drafted.numbers == [[leaf.number for leaf in leaves] for leaves in best]
    assert drafted.parents == [tree.parents for tree in draft.trees]
    assert drafted.shares is None


@pytest.fixture
def _tokens_are_drawn() -> None:
    if "drawn" not in adapter.SELECTION_MODES:
        skip_not_applicable("every token of a draft is the likeliest")


@pytest.mark.usefixtures("_tokens_are_drawn")
@given(draft=adapter.drawn_drafts())
def test_drawn_tokens_come_with_the_odds_they_were_drawn_with(draft: EagleDraft) -> None:
    with checking.checked() as check:
        drafted = adapter.run_draft(draft, check.device)
    tokens, shares = drafted.tokens, drafted.shares
    assert shares is not None
    came_with = [draft.list_initial_probabilities(request) for request in range(len(draft.lengths))]
    assert shares[:, 0].tolist() == torch.tensor(came_with).tolist()
    for step in range(1, draft.steps):
        torch.testing.assert_close(
            shares[:, step],
            torch.tensor(
                [draft.compute_probabilities(row, step, chain) for row, chain in enumerate(tokens)]
            ),
        )
        drawn = adapter.sample_tokens(draft, shares[:, step], step)
        for request, chain in enumerate(tokens):
            if draft.count_choices(request) == 1:
                assert chain[step] == draft.predict_best_token(request, step, chain)
            elif draft.seeds:
                assert chain[step] == drawn[request]
    assert [forward.tokens for forward in drafted.forwards] == [
        [chain[step] for chain in tokens] for step in range(draft.steps - 1)
    ]
    assert drafted.places == draft.places
    assert drafted.parents == [tree.parents for tree in draft.trees]


@pytest.fixture
def _idle_ranks_are_apart() -> None:
    if not draft_features.HAS_IDLE:
        skip_not_applicable("an idle rank goes through the loop of the others")


@pytest.mark.usefixtures("_idle_ranks_are_apart")
@given(draft=adapter.drafts(modes=("tree", "chain", "kernel")))
def test_an_idle_rank_makes_every_forward(draft: EagleDraft) -> None:
    with checking.checked() as check:
        forwards = adapter.run_idle_draft(draft, check.device)
    assert [forward.backend for forward in forwards] == [
        name_backend(step) for step in range(draft.steps - 1)
    ]
    assert all(forward.tokens == forward.places == forward.slots == [] for forward in forwards)
