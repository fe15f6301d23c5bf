"""Context parallelism on an NPU, with and without a cached prefix.

The ranks share a prompt's new tokens. The tokens of its cached prefix belong to no rank, and every
rank attends to them. In plain words:

- Over all ranks, each new token makes one query. It attends to all earlier tokens of its own
  request, cached ones included, and to itself: neither fewer nor more. That holds for the operator
  that chooses keys and for the attention after it, however unevenly the tokens divide.
- A token's visible keys do not depend on the number of ranks.
- A longer cached prefix adds exactly that many keys to every query.
- Each rank stores every new token's key, in order.
- The fused split of queries and keys returns no latent cache, which gathering keys needs: context
  parallelism never uses it. The stored keys are the same with and without it.

Until 0.5.18 the scheduler passes context parallelism one request at a time, so the tests do the
same; 0.5.23 takes several. The Ascend operators are stand-ins (fixtures/npu_operators.py):
recorders with the semantics of their public description.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures import cp_prefix as adapter
from fixtures import cp_ranks
from harness import checking
from harness.core import device
from harness.guards import skip_not_applicable

OPERATORS = ("indexer", "attention")


@pytest.fixture(autouse=True)
def _context_parallelism_runs_here() -> None:
    if device.get_device() != "cpu":
        skip_not_applicable("the Ascend operators are recorders over CPU memory: --device cpu")
    refusal = cp_ranks.get_refusal()
    if refusal:
        skip_not_applicable(f"the release refuses it: {refusal}")


@pytest.mark.guards("23268-kv-prefix-lens")
@given(prefill=adapter.prefills())
def test_each_token_looks_at_its_prefix_and_at_itself(prefill: adapter.DealtPrefill) -> None:
    with checking.checked() as check:
        record = adapter.run_attention(prefill, check.device)
    for operator in OPERATORS:
        got, wanted = record.list_queries(operator), prefill.list_expected_queries()
        assert got == wanted, adapter.describe_mismatch(operator, got, wanted)


@pytest.mark.guards("23268-kv-prefix-lens")
@given(prefill=adapter.prefills())
def test_ranks_change_nothing_that_is_looked_at(prefill: adapter.DealtPrefill) -> None:
    alone = dataclasses.replace(prefill, ranks=1)
    with checking.checked() as check:
        shared, whole = (adapter.run_attention(one, check.device) for one in (prefill, alone))
    assert not whole.dealt
    for operator in OPERATORS:
        got, wanted = shared.list_queries(operator), whole.list_queries(operator)
        assert got == wanted, adapter.describe_mismatch(operator, got, wanted)


@pytest.mark.guards("23268-kv-prefix-lens")
@given(prefill=adapter.prefills(), longer=st.integers(1, 300))
def test_a_longer_prefix_lengthens_every_look(prefill: adapter.DealtPrefill, longer: int) -> None:
    both = prefill, prefill.lengthen_prefix(longer)
    with checking.checked() as check:
        before, after = (adapter.run_attention(one, check.device) for one in both)
    for operator in OPERATORS:
        wanted = [
            dataclasses.replace(look, key_count=look.key_count + longer * (look.request == 0))
            for look in before.list_queries(operator)
        ]
        got = after.list_queries(operator)
        assert got == wanted, adapter.describe_mismatch(operator, got, wanted)


@given(prefill=adapter.prefills())
def test_lengths_from_positions_hold_the_prefix(prefill: adapter.DealtPrefill) -> None:
    """Check the same claim for the code that replaced 23268-kv-prefix-lens's."""
    if not cp_ranks.BY_POSITION:
        skip_not_applicable("the KV lengths come from the split, not from the tokens' positions")
    with checking.checked() as check:
        record = adapter.run_attention(prefill, check.device)
    for operator in OPERATORS:
        got, wanted = record.list_queries(operator), prefill.list_expected_queries()
        assert got == wanted, adapter.describe_mismatch(operator, got, wanted)


@given(prefill=adapter.prefills())
def test_every_rank_stores_all_keys_in_order(prefill: adapter.DealtPrefill) -> None:
    with checking.checked() as check:
        record = adapter.run_attention(prefill, check.device, gathered=True)
    for keys in record.keys:
        assert keys.reshape(len(keys), -1)[:, 0].tolist() == list(range(1, len(keys) + 1))
        assert len(keys) == len(prefill.tokens)


@pytest.mark.guards("23268-fused-qk-split")
@given(prefill=adapter.prefills())
def test_the_fused_split_and_context_parallelism_never_meet(prefill: adapter.DealtPrefill) -> None:
    if not cp_ranks.FUSED_SPLIT:
        skip_not_applicable("no fused split of queries and keys")
    with checking.checked() as check:
        record = adapter.run_preparation(prefill, check.device)
    assert not record.unbound_names, f"the prefill ends: {record.unbound_names[0]}"
    assert not (record.dealt and record.recorder.fused_splits)
    for keys in record.keys:
        assert torch.equal(keys.cpu(), adapter.list_expected_keys(prefill))
