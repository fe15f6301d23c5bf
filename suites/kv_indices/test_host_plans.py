"""flashinfer's plan of a draft: the indptr of every step, known on the host.

THE INVARIANTS IN PLAIN WORDS

1. Each step's backend plans with the indptr of its own row, up to the number of branches.
2. Lengths on the host give the indptr of every step without a device sync. Then long prefixes are
   copied by many programs, and the rows are the same.
3. Missing lengths, or lengths of other requests, are not used.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures import kv_indices as adapter
from fixtures.draft_batches import DraftBatch, batches, pad_batch
from harness import checking
from harness.guards import skip_not_applicable

NOT_USABLE = {
    "not known": lambda lengths: None,
    "on a device": lambda lengths: lengths.to("meta"),
    "of fewer requests": lambda lengths: lengths[:-1],
}


@pytest.fixture(scope="module")
def _lengths_are_used() -> None:
    if not adapter.HAS_HOST_LENGTHS:
        skip_not_applicable("flashinfer plans a draft from lengths on the device alone")


@given(
    batch=batches(requests=2),
    padding=st.integers(0, 2),
    mode=st.sampled_from([adapter.FillMode.EAGER, adapter.FillMode.JUST_FITS]),
    known=st.booleans(),
)
def test_each_step_plans_with_the_indptr_of_its_row(
    batch: DraftBatch, padding: int, mode: adapter.FillMode, known: bool
) -> None:
    batch = pad_batch(batch, padding)
    with checking.checked() as check:
        draft = adapter.make_backend("flashinfer", batch, check.device)
        given_lengths = None if known else NOT_USABLE["not known"]
        filled = adapter.fill_rows(check, draft, batch, mode, host_lengths=given_lengths)
    for planned, (indptr, _) in zip(filled.host_indptrs, filled.attend_inputs, strict=True):
        assert planned is not None
        assert planned.tolist() == indptr.tolist()


@pytest.mark.usefixtures("_lengths_are_used")
@given(batch=batches(longest=1700, requests=2, topk=2, shortest=0))
def test_lengths_known_on_the_host_say_the_same(batch: DraftBatch) -> None:
    with checking.checked() as check, adapter.override_host_plan():
        draft = adapter.make_backend("flashinfer", batch, check.device)
        adapter.assert_rows_match(
            adapter.fill_rows(check, draft, batch, adapter.FillMode.REPLAY), batch
        )


@pytest.mark.usefixtures("_lengths_are_used")
@given(batch=batches(longest=2000, shortest=0))
def test_the_host_counts_the_branches_of_every_step(batch: DraftBatch) -> None:
    lengths = torch.tensor(batch.lengths, dtype=torch.int64)
    counted = adapter.build_host_indptr(lengths, batch.topk, batch.steps)
    assert counted.tolist() == [batch.list_branch_starts(step) for step in range(batch.steps)]


@pytest.mark.usefixtures("_lengths_are_used")
@given(batch=batches(), why=st.sampled_from(sorted(NOT_USABLE)))
def test_lengths_that_the_host_cannot_use_are_not_used(batch: DraftBatch, why: str) -> None:
    with checking.checked() as check, adapter.override_host_plan():
        draft = adapter.make_backend("flashinfer", batch, check.device)
        mode = adapter.FillMode.REPLAY
        adapter.assert_rows_match(
            adapter.fill_rows(check, draft, batch, mode, host_lengths=NOT_USABLE[why]), batch
        )
