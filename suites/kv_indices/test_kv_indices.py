"""Where a multi-step draft looks: the index rows of the draft backends.

THE INVARIANTS IN PLAIN WORDS

One table serves all steps of a draft. Row i is for step i. In it the branches of all requests lie
one behind the other, and each branch holds the slots of its request's prefix and of its own first
i + 1 draft tokens: nothing of another branch, nothing of another request.

1. A row is wide enough for every batch that the backend accepts: as many requests as it was sized
   for, each with a prefix and a draft that end within the context, times topk branches. That holds
   for the rows that CUDA graphs are captured with and for those that an eager batch makes itself.
2. A program of the kernel writes its own branch's place in its own row and no other, reads its own
   branch's slots and no others, and every index is the slot that the branch attends to. A row that
   just fits is enough.
3. The indptr of a row says where each branch begins: a step is given exactly its branches, and
   every step but the last is given its row.
4. A batch is its requests one behind the other: filling them together or one by one is the same.
5. Padding a batch up to the size of a captured graph changes nothing for the requests in it.
6. A draft that looks at a window alone sees the first tokens and the most recent ones, in order.
7. Were a row ever too small, SGLang's own check refuses the batch before an index is written.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures import kv_indices as adapter
from fixtures.draft_batches import Batch, batches, one_at_a_time, padded
from harness import checking
from harness.guards import skip_not_applicable
from harness.runs.fuzz.search_targets import maximize_target

CHECK = "kv-indices-size-check"
ANY_BACKEND = st.sampled_from(sorted(adapter.BACKENDS))
OTHERS = st.sampled_from(["triton", "aiter"])


def a_graph_row_holds_what_the_last_step_writes(name: str, batch: Batch) -> None:
    with checking.checked() as check:
        draft = adapter.backend(name, batch, check.device)
        adapter.size_for_graph(draft, batch)
        steps, width = draft.cuda_graph_kv_indices.shape
    maximize_target("fullness of a row", batch.need / width)
    assert steps == batch.steps
    assert width >= batch.need


@pytest.mark.guards("27338", without=(CHECK,))
@given(batch=batches(longest=2000))
def test_a_graph_row_of_flashinfer_holds_what_the_last_step_writes(batch: Batch) -> None:
    a_graph_row_holds_what_the_last_step_writes("flashinfer", batch)


@pytest.mark.guards("27460", without=(CHECK,))
@given(batch=batches(longest=2000))
def test_a_graph_row_of_flashinfer_mla_holds_what_the_last_step_writes(
    batch: Batch,
) -> None:
    a_graph_row_holds_what_the_last_step_writes("flashinfer-mla", batch)


@given(name=OTHERS, batch=batches(longest=2000))
def test_a_graph_row_of_another_backend_holds_what_the_last_step_writes(
    name: str, batch: Batch
) -> None:
    a_graph_row_holds_what_the_last_step_writes(name, batch)


@given(name=ANY_BACKEND, batch=batches(longest=2000))
def test_an_eager_row_holds_what_the_last_step_writes(name: str, batch: Batch) -> None:
    with checking.checked() as check:
        check.run_only(adapter.KERNEL, [])
        draft = adapter.backend(name, batch, check.device)
        forward = adapter.forward_batch(draft, batch, check.device)
        adapter.enter(draft, forward, adapter.Way.EAGER)
        steps, width = adapter.launch_of(check).arguments["kv_indices"].shape
    maximize_target("fullness of a row", batch.need / width)
    assert steps == batch.steps
    assert width >= batch.need


def each_branch_finds_its_slots(name: str, batch: Batch, way: adapter.Way) -> None:
    with checking.checked() as check:
        draft = adapter.backend(name, batch, check.device)
        adapter.holds(adapter.fill(check, draft, batch, way), batch)


@pytest.mark.guards("27338", without=(CHECK,))
@given(batch=batches(), way=adapter.IN_A_GRAPH)
def test_in_a_graph_each_branch_of_flashinfer_finds_its_slots(
    batch: Batch, way: adapter.Way
) -> None:
    each_branch_finds_its_slots("flashinfer", batch, way)


@pytest.mark.guards("27460", without=(CHECK,))
@given(batch=batches(), way=adapter.IN_A_GRAPH)
def test_in_a_graph_each_branch_of_flashinfer_mla_finds_its_slots(
    batch: Batch, way: adapter.Way
) -> None:
    each_branch_finds_its_slots("flashinfer-mla", batch, way)


@given(where=adapter.UNTOUCHED, batch=batches())
def test_each_branch_finds_its_slots_everywhere_else(
    where: tuple[str, adapter.Way], batch: Batch
) -> None:
    name, way = where
    each_branch_finds_its_slots(name, batch, way)


# One backend each: where a release has neither fix, one toggle would not make both of them right.


@pytest.mark.guards("27338", without=(CHECK,))
@given(batch=batches(requests=2, topk=2))
def test_a_batch_is_its_requests_one_behind_the_other(batch: Batch) -> None:
    together = adapter.filled_in_a_graph("flashinfer", batch)
    alone = [adapter.filled_in_a_graph("flashinfer", one) for one in one_at_a_time(batch)]
    for step in range(batch.steps):
        assert together.branches(step, batch.branches) == [
            branch for one in alone for branch in one.branches(step, batch.topk)
        ]


@pytest.mark.guards("27460", without=(CHECK,))
@given(batch=batches(requests=1))
def test_padding_changes_nothing_for_the_requests(batch: Batch) -> None:
    more = padded(batch, 1)  # which may reach further: both have its pool's slots
    bare = adapter.filled_in_a_graph("flashinfer-mla", replace(batch, columns=more.width))
    filled_up = adapter.filled_in_a_graph("flashinfer-mla", more)
    for step in range(batch.steps):
        assert filled_up.branches(step, batch.branches) == bare.branches(step, batch.branches)


@given(name=st.sampled_from(adapter.WINDOWED), batch=batches(windows=True))
def test_a_window_keeps_the_first_and_the_most_recent(name: str, batch: Batch) -> None:
    if not adapter.HAS_WINDOW:
        skip_not_applicable("drafts have no window of their own")
    each_branch_finds_its_slots(name, batch, adapter.Way.REPLAY)


@pytest.mark.guards(CHECK)
@given(
    name=st.sampled_from(adapter.CHECKED),
    batch=batches(),
    missing=st.integers(1, 3),
    way=adapter.IN_A_GRAPH,
)
def test_a_row_that_is_too_small_is_refused_before_it_is_written(
    name: str, batch: Batch, missing: int, way: adapter.Way
) -> None:
    with checking.checked() as check:
        check.run_only(adapter.KERNEL, [])
        draft = adapter.backend(name, batch, check.device)
        adapter.narrow(draft, batch, batch.need - missing)
        forward = adapter.forward_batch(draft, batch, check.device)
        assert adapter.refuses(draft, forward, way)
        assert not check.launches
