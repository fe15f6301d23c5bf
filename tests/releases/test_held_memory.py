"""Ownership in a scheduler's pools: what is held twice, lost, locked by nobody, or read stale."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fixtures.serving.ownership import OwnershipError, check_ownership, check_rest
from fixtures.serving.tagged_model import StaleRow, TaggedModel, predict_answer


def make_scheduler() -> Any:
    """A request of three tokens, the first of which is the tree's, in a pool of five slots."""
    root = SimpleNamespace(children={}, id=0)
    node = SimpleNamespace(children={}, parent=root, id=1, value=torch.tensor([4]), lock_ref=1)
    root.children["a"] = node
    request = SimpleNamespace(
        rid="r0",
        req_pool_idx=1,
        cache_protected_len=1,
        kv_allocated_len=3,
        lock=SimpleNamespace(node=1),
        finished=lambda: False,
    )
    return SimpleNamespace(
        running_batch=SimpleNamespace(reqs=[request]),
        last_batch=None,
        chunked_req=None,
        waiting_queue=[],
        tree_cache=SimpleNamespace(root_node=root, page_size=1),
        req_to_token_pool=SimpleNamespace(
            free_slots=[0], size=2, req_to_token=torch.tensor([[0, 0, 0], [4, 2, 3]])
        ),
        token_to_kv_pool_allocator=SimpleNamespace(
            free_pages=torch.tensor([1, 5]), release_pages=None, size=5, page_size=1
        ),
    )


def test_a_scheduler_in_which_all_is_held_once_passes() -> None:
    check_ownership(make_scheduler())


def test_a_slot_that_is_free_and_held_is_named_with_its_owners() -> None:
    scheduler = make_scheduler()
    scheduler.token_to_kv_pool_allocator.free_pages = torch.tensor([1, 3, 5])
    with pytest.raises(OwnershipError, match=r"full page 3 has 2 owners: the free list, r0 \(tok"):
        check_ownership(scheduler)


def test_a_slot_that_nobody_holds_is_lost() -> None:
    scheduler = make_scheduler()
    scheduler.token_to_kv_pool_allocator.free_pages = torch.tensor([1])
    with pytest.raises(OwnershipError, match="full page 5 is lost"):
        check_ownership(scheduler)


def test_a_row_of_the_table_that_nobody_holds_is_lost() -> None:
    scheduler = make_scheduler()
    scheduler.req_to_token_pool.free_slots = []
    with pytest.raises(OwnershipError, match="row 2 is lost"):
        check_ownership(scheduler)


def test_a_lock_without_a_request_is_named() -> None:
    scheduler = make_scheduler()
    scheduler.tree_cache.root_node.children["a"].lock_ref = 2
    with pytest.raises(OwnershipError, match="node 1 is locked 2 times by 1 holder"):
        check_ownership(scheduler)


def test_a_shared_prefix_in_other_slots_than_the_tree_has_is_named() -> None:
    scheduler = make_scheduler()
    scheduler.req_to_token_pool.req_to_token[1, 0] = 1
    with pytest.raises(OwnershipError, match=r"r0 reads \[1\] as its first tokens"):
        check_ownership(scheduler)


def test_at_rest_nobody_may_hold_a_row() -> None:
    with pytest.raises(OwnershipError, match="r0 holds a row though nothing runs"):
        check_rest(make_scheduler())


def make_model() -> TaggedModel:
    pool = SimpleNamespace(k_buffer=[torch.zeros(6, 1, 16)], v_buffer=[torch.zeros(6, 1, 16)])
    runner = SimpleNamespace(
        model_config=SimpleNamespace(vocab_size=512),
        token_to_kv_pool=pool,
        token_to_kv_pool_allocator=SimpleNamespace(),
        req_to_token_pool=SimpleNamespace(),
    )
    return TaggedModel(runner)


def test_a_row_that_is_overwritten_is_found_by_the_next_reader() -> None:
    model, slots = make_model(), torch.tensor([4, 2, 3])
    model.write_text(slots, [7, 8, 9])
    model.read_prefix(slots, "r0")
    model.write_text(torch.tensor([2]), [8])
    with pytest.raises(StaleRow, match=r"r0, full k_buffer\[0\]: position 1 has a row of position"):
        model.read_prefix(slots, "r0")


def test_rows_of_two_texts_do_not_follow_each_other() -> None:
    model, slots = make_model(), torch.tensor([4, 2, 3])
    model.write_text(slots, [7, 8, 9])
    model.write_text(torch.tensor([4, 5]), [6, 8])
    with pytest.raises(StaleRow, match="does not follow the one before it"):
        model.read_prefix(slots, "r0")


def test_an_answer_goes_on_from_its_own_tokens() -> None:
    answer = predict_answer([5, 9], 4)
    assert predict_answer([5, 9, *answer[:2]], 2) == answer[2:]
    assert predict_answer([5, 9], 4, version=1) != answer
