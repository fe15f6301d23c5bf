"""The slots that a multi-step draft reads: the index rows of the draft backends.

THE INVARIANTS IN PLAIN WORDS

One table serves all steps of a draft. Row i is for step i. In it the branches of all requests are
contiguous, and each branch holds the slots of its request's prefix and of its own first i + 1 draft
tokens: nothing of another branch, nothing of another request.

1. A row is wide enough for every batch that the backend accepts: the maximum number of requests,
   each with a prefix and a draft that end within the context, times topk branches. That holds for
   the rows that CUDA graphs are captured with and for those that an eager batch allocates itself.
2. A program of the kernel writes its own branch's part of its own row and no other, reads its own
   branch's slots and no others, and every index is the slot that the branch attends to. A row that
   just fits is enough.
3. The indptr of a row gives the start of each branch: a step receives exactly its branches, and
   every step but the last receives its row.
4. A batch is its requests in sequence: filling them together or one by one is the same.
5. Padding a batch up to the size of a captured graph changes nothing for the requests in it.
6. A draft with a window sees the first tokens and the most recent ones, in order.
7. If a row were too small, SGLang's own check refuses the batch before an index is written.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures import kv_indices as adapter
from fixtures.draft_batches import DraftBatch, batches, pad_batch, split_batch
from harness import checking
from harness.guards import skip_not_applicable
from harness.runs.fuzz.search_targets import maximize_target

CHECK = "kv-indices-size-check"
ANY_BACKEND = st.sampled_from(sorted(adapter.BACKENDS))
OTHERS = st.sampled_from(["triton", "aiter"])


def a_graph_row_holds_what_the_last_step_writes(name: str, batch: DraftBatch) -> None:
    with checking.checked() as check:
        draft = adapter.make_backend(name, batch, check.device)
        adapter.size_for_graph(draft, batch)
        steps, width = draft.cuda_graph_kv_indices.shape
    maximize_target("fullness of a row", batch.needed_width / width)
    assert steps == batch.steps
    assert width >= batch.needed_width


@pytest.mark.guards("27338", without=(CHECK,))
@given(batch=batches(longest=2000))
def test_a_graph_row_of_flashinfer_holds_what_the_last_step_writes(batch: DraftBatch) -> None:
    a_graph_row_holds_what_the_last_step_writes("flashinfer", batch)


@pytest.mark.guards("27460", without=(CHECK,))
@given(batch=batches(longest=2000))
def test_a_graph_row_of_flashinfer_mla_holds_what_the_last_step_writes(
    batch: DraftBatch,
) -> None:
    a_graph_row_holds_what_the_last_step_writes("flashinfer-mla", batch)


@given(name=OTHERS, batch=batches(longest=2000))
def test_a_graph_row_of_another_backend_holds_what_the_last_step_writes(
    name: str, batch: DraftBatch
) -> None:
    a_graph_row_holds_what_the_last_step_writes(name, batch)


@given(name=ANY_BACKEND, batch=batches(longest=2000))
def test_an_eager_row_holds_what_the_last_step_writes(name: str, batch: DraftBatch) -> None:
    with checking.checked() as check:
        check.run_only(adapter.KERNEL, [])
        draft = adapter.make_backend(name, batch, check.device)
        forward = adapter.make_forward_batch(draft, batch, check.device)
        adapter.run_backend(draft, forward, adapter.FillMode.EAGER)
        steps, width = adapter.get_last_launch(check).arguments["kv_indices"].shape
    maximize_target("fullness of a row", batch.needed_width / width)
    assert steps == batch.steps
    assert width >= batch.needed_width


def each_branch_finds_its_slots(name: str, batch: DraftBatch, mode: adapter.FillMode) -> None:
    with checking.checked() as check:
        draft = adapter.make_backend(name, batch, check.device)
        adapter.assert_rows_match(adapter.fill_rows(check, draft, batch, mode), batch)


@pytest.mark.guards("27338", without=(CHECK,))
@given(batch=batches(), mode=adapter.GRAPH_MODES)
def test_in_a_graph_each_branch_of_flashinfer_finds_its_slots(
    batch: DraftBatch, mode: adapter.FillMode
) -> None:
    each_branch_finds_its_slots("flashinfer", batch, mode)


@pytest.mark.guards("27460", without=(CHECK,))
@given(batch=batches(), mode=adapter.GRAPH_MODES)
def test_in_a_graph_each_branch_of_flashinfer_mla_finds_its_slots(
    batch: DraftBatch, mode: adapter.FillMode
) -> None:
    each_branch_finds_its_slots("flashinfer-mla", batch, mode)


@given(where=adapter.UNAFFECTED_CASES, batch=batches())
def test_each_branch_finds_its_slots_everywhere_else(
    where: tuple[str, adapter.FillMode], batch: DraftBatch
) -> None:
    name, mode = where
    each_branch_finds_its_slots(name, batch, mode)


# One backend each: on a release with neither fix, one toggle would not make both of them right.


@pytest.mark.guards("27338", without=(CHECK,))
@given(batch=batches(requests=2, topk=2))
def test_a_batch_is_its_requests_one_behind_the_other(batch: DraftBatch) -> None:
    together = adapter.fill_in_graph("flashinfer", batch)
    alone = [adapter.fill_in_graph("flashinfer", one) for one in split_batch(batch)]
    for step in range(batch.steps):
        assert together.list_branches(step, batch.branches) == [
            branch for one in alone for branch in one.list_branches(step, batch.topk)
        ]


@pytest.mark.guards("27460", without=(CHECK,))
@given(batch=batches(requests=1))
def test_padding_changes_nothing_for_the_requests(batch: DraftBatch) -> None:
    more = pad_batch(batch, 1)  # which may reach further: both have slots of its pool
    bare = adapter.fill_in_graph("flashinfer-mla", replace(batch, columns=more.width))
    filled_up = adapter.fill_in_graph("flashinfer-mla", more)
    for step in range(batch.steps):
        assert filled_up.list_branches(step, batch.branches) == bare.list_branches(
            step, batch.branches
        )


@given(name=st.sampled_from(adapter.WINDOW_BACKENDS), batch=batches(windows=True))
def test_a_window_keeps_the_first_and_the_most_recent(name: str, batch: DraftBatch) -> None:
    if not adapter.HAS_WINDOW:
        skip_not_applicable("no window is written into the rows of a draft")
    each_branch_finds_its_slots(name, batch, adapter.FillMode.REPLAY)


@pytest.mark.guards(CHECK)
@given(
    name=st.sampled_from(adapter.ASSERTING_BACKENDS),
    batch=batches(),
    missing=st.integers(1, 3),
    mode=adapter.GRAPH_MODES,
)
def test_a_row_that_is_too_small_is_refused_before_it_is_written(
    name: str, batch: DraftBatch, missing: int, mode: adapter.FillMode
) -> None:
    with checking.checked() as check:
        check.run_only(adapter.KERNEL, [])
        draft = adapter.make_backend(name, batch, check.device)
        adapter.narrow_rows(draft, batch, batch.needed_width - missing)
        forward = adapter.make_forward_batch(draft, batch, check.device)
        assert adapter.is_refused(draft, forward, mode)
        assert not check.launches
