"""Drafts over a pool that moves its pages: the rows hold the current locations of the slots.

THE INVARIANTS IN PLAIN WORDS

1. Every index is the current location of the branch's slot, whether the draft reads the table of
   all pages or rows of pages that were written for the batch.
2. A slot whose page has no location is slot zero, which is never read.
3. If indices have 64 bits, a page may lie past the 32-bit range.
4. A program reads its own branch's pages and no others.
"""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fixtures import kv_indices as adapter
from fixtures.draft_batches import DraftBatch, batches
from fixtures.moved_pages import FAR_PAGE, MovedPageTranslator
from harness import checking
from harness.guards import skip_not_applicable


@pytest.fixture(autouse=True, scope="module")
def _pages_move() -> None:
    if not adapter.HAS_MOVED_PAGES:
        skip_not_applicable("drafts read the pool's own rows alone")


GAPS = DraftBatch(lengths=(9, 4), topk=2, steps=2, page=2, context=12, slots=2)


@given(
    name=st.sampled_from(sorted(adapter.BACKENDS)),
    batch=batches(requests=2),
    in_table=st.booleans(),
    far=st.booleans(),
    lost=st.booleans(),
)
@example(name="flashinfer", batch=GAPS, in_table=False, far=False, lost=True)
def test_each_branch_finds_where_its_slots_lie_now(
    name: str, batch: DraftBatch, in_table: bool, far: bool, lost: bool
) -> None:
    first = FAR_PAGE if far and name in adapter.INT64_BACKENDS and batch.page > 1 else 1
    with checking.checked() as check:
        moved = MovedPageTranslator(batch, in_table, first, lost, check.device)
        draft = adapter.make_backend(name, batch, check.device)
        filled = adapter.fill_rows(check, draft, batch, adapter.FillMode.REPLAY, moved_pages=moved)
        adapter.assert_rows_match(filled, batch, moved)
