"""Pointers that a kernel loads from memory lead into the living storages of the device."""

from __future__ import annotations

import gc

import pytest
import torch
import triton
import triton.language as tl

from harness import checking


@triton.jit
def copy_from_table(addresses, out, place, count: tl.constexpr):
    source = tl.load(addresses).to(tl.pointer_type(tl.float32))
    lanes = tl.arange(0, count)
    tl.store(out + lanes, tl.load(source + place + lanes))


@triton.jit
def copy_halves(left, right, left_out, right_out, count: tl.constexpr):
    half = tl.program_id(0)
    if half == 0:
        source, target = left, left_out
    else:
        source, target = right, right_out
    lanes = tl.arange(0, count)
    tl.store(target + lanes, tl.load(source + lanes))


def make_table(*tensors: torch.Tensor) -> torch.Tensor:
    return torch.tensor([tensor.data_ptr() for tensor in tensors], device="cuda")


def test_a_loaded_pointer_reads_inside_its_storage() -> None:
    before = torch.arange(8.0, device="cuda")  # of before the session
    with checking.checked("virtual"):
        out = torch.empty(8, device="cuda")
        copy_from_table[(1,)](make_table(before), out, 0, 8)
        assert out.tolist() == before.tolist()
        within = torch.arange(8.0, device="cuda") + 1
        copy_from_table[(1,)](make_table(within), out, 0, 8)
        assert out.tolist() == within.tolist()


def test_a_loaded_pointer_may_lead_into_pinned_memory() -> None:
    pinned = torch.arange(8.0).pin_memory()
    with checking.checked("virtual"):
        out = torch.empty(8, device="cuda")
        copy_from_table[(1,)](make_table(pinned), out, 0, 8)
        assert out.tolist() == pinned.tolist()


def test_a_loaded_pointer_into_pageable_memory_is_out_of_bounds() -> None:
    pageable = torch.arange(8.0)
    with checking.checked("virtual") as check:
        out, table = torch.empty(8, device="cuda"), make_table(pageable)
        with pytest.raises(checking.OutOfBounds):
            copy_from_table[(1,)](table, out, 0, 8)
        check.discard_errors()


def test_a_loaded_pointer_past_its_storage_is_out_of_bounds() -> None:
    source = torch.arange(8.0, device="cuda")
    with checking.checked("virtual") as check:
        out, table = torch.empty(8, device="cuda"), make_table(source)
        with pytest.raises(checking.OutOfBounds):
            copy_from_table[(1,)](table, out, 1 << 28, 8)
        check.discard_errors()


def test_a_loaded_pointer_into_freed_memory_is_out_of_bounds() -> None:
    with checking.checked("virtual") as check:
        out = torch.empty(8, device="cuda")
        freed = torch.empty(1 << 20, device="cuda").fill_(1)
        table = make_table(freed)
        del freed
        gc.collect()
        with pytest.raises(checking.OutOfBounds, match="freed"):
            copy_from_table[(1,)](table, out, 0, 8)
        check.discard_errors()


def test_a_store_through_a_pointer_chosen_by_a_branch_initializes_memory() -> None:
    with checking.checked("virtual"):
        left, right = torch.ones(8, device="cuda"), torch.zeros(8, device="cuda")
        outs = [torch.empty(8, device="cuda") for _ in range(2)]
        copy_halves[(2,)](left, right, *outs, 8)
        again = [torch.empty(8, device="cuda") for _ in range(2)]
        copy_halves[(2,)](*outs, *again, 8)
        assert [one.tolist() for one in again] == [[1.0] * 8, [0.0] * 8]


def test_a_loaded_pointer_leads_into_what_the_replayed_graph_keeps() -> None:
    static, out = torch.zeros(8, device="cuda"), torch.empty(8, device="cuda")
    table = torch.zeros(1, dtype=torch.int64, device="cuda")
    host_table = torch.zeros(1, dtype=torch.int64).pin_memory()
    graph = torch.cuda.CUDAGraph()
    with checking.checked("virtual") as check:
        with torch.cuda.graph(graph):
            temporary = static + 1
            host_table[0] = temporary.data_ptr()
            table.copy_(host_table, non_blocking=True)
            copy_from_table[(1,)](table, out, 0, 8)
        del temporary
        gc.collect()
        static.fill_(4)
        graph.replay()
        assert out.tolist() == [5] * 8
        with pytest.raises(checking.OutOfBounds):
            copy_from_table[(1,)](table, out, 0, 8)  # eager code has no right to it
        check.discard_errors()
