"""The pages that a draft step of FlashAttention reads when branches have their own pages.

THE INVARIANTS IN PLAIN WORDS

With topk above 1 a draft attends in two halves. All branches of a request share the whole pages of
its prefix. Each branch then has its own pages: its copy of the prefix's last, unfinished page, on
which its draft tokens follow. Step i has drafted i + 1 tokens, so a branch spans at most i + 2
pages, which is the number of columns of step i's table of own pages.

1. Filling a step's table writes no column past a row's own: the next column is the next branch's.
2. A row lists exactly the pages that its branch has reached by that step, in that order, and counts
   the tokens on them: the unfinished page's and the drafted ones.
3. The prefix's table lists the whole pages of each request, and counts the tokens on them.
4. A step does not depend on the draft's length: one more step changes no table of those before.
5. The order of the requests is the order of the rows, and padding changes none of their rows.
6. If a table were too narrow, SGLang's own check refuses the batch before the table is written.
"""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fixtures import page_table as adapter
from fixtures.draft_batches import DraftBatch, pad_batch, split_batch
from harness import checking

CHECK = "draft-page-table-size-check"


@pytest.mark.guards("27360", without=(CHECK,))
@given(batch=adapter.batches())
def test_no_step_writes_behind_a_row_of_its_table(batch: DraftBatch) -> None:
    with checking.checked() as check:
        for step in adapter.replay_step_tables(
            batch, adapter.list_draft_slots(batch), check.device
        ):
            assert (step.own.trailing_columns == adapter.FREE_VALUE).all(), step.own.rows.tolist()


@given(batch=adapter.batches(), known=st.booleans())
def test_each_branch_finds_its_own_pages(batch: DraftBatch, known: bool) -> None:
    slots = adapter.list_draft_slots(batch)
    with checking.checked() as check:
        for number, step in enumerate(
            adapter.replay_step_tables(batch, slots, check.device, known)
        ):
            adapter.assert_table_matches(step.prefix, adapter.make_prefix_half(batch))
            adapter.assert_table_matches(step.own, adapter.make_own_half(batch, slots, number))


@given(batch=adapter.batches())
def test_each_branch_finds_its_own_pages_without_a_graph(batch: DraftBatch) -> None:
    slots = adapter.list_draft_slots(batch)
    with checking.checked() as check:
        for number, step in enumerate(adapter.build_step_tables(batch, slots, check.device)):
            adapter.assert_table_matches(step.prefix, adapter.make_prefix_half(batch))
            adapter.assert_table_matches(step.own, adapter.make_own_half(batch, slots, number))


@pytest.mark.guards("27360", without=(CHECK,))
@given(batch=adapter.batches())
def test_one_more_step_changes_none_before(batch: DraftBatch) -> None:
    longer = adapter.list_draft_slots(batch)
    shorter = dataclasses.replace(batch, steps=batch.steps - 1)
    assume(shorter.steps > 1)
    with checking.checked() as check:
        before = adapter.replay_step_tables(
            shorter, [branch[:-1] for branch in longer], check.device
        )
        after = adapter.replay_step_tables(batch, longer, check.device)
        for one, other in zip(before, after, strict=False):
            assert one.own.rows.tolist() == other.own.rows.tolist()
            assert one.own.tokens.tolist() == other.own.tokens.tolist()


@given(batch=adapter.batches(), padding=st.integers(0, 2))
def test_a_batch_is_its_requests_whatever_fills_it_up(batch: DraftBatch, padding: int) -> None:
    slots = adapter.list_draft_slots(batch)
    nowhere = [[0] * batch.steps] * (padding * batch.topk)
    with checking.checked() as check:
        together = adapter.replay_step_tables(
            pad_batch(batch, padding), slots + nowhere, check.device
        )
        alone = [
            adapter.replay_step_tables(one, adapter.list_draft_slots(one), check.device)
            for one in split_batch(batch)
        ]
        for number, step in enumerate(together):
            own = [row for one in alone for row in one[number].own.rows.tolist()]
            tokens = [count for one in alone for count in one[number].own.tokens.tolist()]
            assert step.own.rows.tolist()[: batch.branches] == own
            assert step.own.tokens.tolist()[: batch.branches] == tokens


@pytest.mark.guards(CHECK)
@given(batch=adapter.batches(pages=st.just(64)), chosen=st.integers(0, 4))
def test_a_table_that_is_too_narrow_is_refused_before_it_is_written(
    batch: DraftBatch, chosen: int
) -> None:
    assume(batch.steps > 2)  # the first step's only column cannot be removed
    # All on one page: SGLang counts tokens, and would write without refusing.
    assume(all(length % 64 + batch.steps <= 64 for length in batch.lengths))
    step = 1 + chosen % (batch.steps - 2)
    with checking.checked() as check:
        forward = adapter.make_forward_batch(batch, adapter.list_draft_slots(batch), check.device)
        many = adapter.capture_draft(batch, forward, check.device)
        table = adapter.remove_column(many, batch, step)
        assert adapter.is_refused(many, forward)
        assert (table == adapter.FREE_VALUE).all()
