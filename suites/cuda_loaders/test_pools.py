"""Calls that copy between pools, and the canary's plan."""

from __future__ import annotations

import pytest
import torch

from fixtures.loader_tensors import (
    collect_addresses,
    compare_tensors,
    draw_normal,
    find_function,
    make_int32,
    make_int64,
    make_zeros,
)

_HICACHE = "ops.kvcache.hicache"
_TOKENS = [0, 1, 4, 5]


@pytest.mark.loader("jit.utils.occupancy._jit_probe_module")
def test_count_clusters() -> None:
    find_function("jit.utils.occupancy", "get_max_active_clusters")(2, 1)


@pytest.mark.loader(f"{_HICACHE}._jit_hicache_module")
def test_copy_rows_of_one_layer() -> None:
    module = find_function(_HICACHE, "_jit_hicache_module")(
        element_size=256, unroll=4, block_quota=2
    )
    targets = make_zeros(16, 128), make_zeros(16, 128), make_int64([1, 2])
    module.launch_one(*targets, draw_normal(16, 128), draw_normal(16, 128), make_int64([3, 4]))


@pytest.mark.loader(f"{_HICACHE}._jit_hicache_staged_module")
def test_write_pages_back() -> None:
    write = find_function(_HICACHE, "transfer_hicache_all_layer_mla_staged_lf_pf")
    layers = [draw_normal(8, 512) for _ in range(2)]
    target = torch.zeros(8, 2, 512, dtype=torch.bfloat16).pin_memory()
    places = make_int64(_TOKENS), torch.tensor([2, 3, 6, 7])
    options = {"page_size": 2, "unroll": 4, "block_quota": 4}
    write(collect_addresses(layers), *places, make_zeros(4, 2, 512), target, **options)


@pytest.mark.loader(f"{_HICACHE}._jit_hicache_page_unified_module")
def test_load_unified_pages() -> None:
    load = find_function(_HICACHE, "transfer_hicache_one_layer_page_unified_lf")
    source = torch.ones(3, 2, 2, 2, 2, 2, 256, dtype=torch.bfloat16).pin_memory()
    caches = make_zeros(16, 1024), make_zeros(16, 1024)
    load(*caches, source, make_int64(_TOKENS), make_int64([2, 3, 6, 7]), 1, block_quota=4)


@pytest.mark.loader(f"{_HICACHE}._jit_page_unified_write_back")
def test_write_unified_pages_back() -> None:
    write = find_function(_HICACHE, "transfer_hicache_all_layer_staged_lf_page_unified")
    keys, values = ([draw_normal(16, 1024) for _ in range(2)] for _ in range(2))
    target = torch.zeros(4, 2, 2, 2, 2, 2, 256, dtype=torch.bfloat16).pin_memory()
    pages = make_int64([0, 2]), torch.tensor([1, 3])
    addresses = collect_addresses(keys), collect_addresses(values)
    write(*addresses, *pages, make_zeros(2, 2, 2, 2, 2, 2, 256), target)


@pytest.mark.loader("ops.kv_canary.plan.entries_kernel._jit_plan_entries_module")
def test_plan_canary_entries() -> None:
    names = "slot_indices expected_tokens expected_positions prev_slot_indices".split()
    find_function("ops.kv_canary.plan.entries_kernel", "launch_plan_entries_kernel")(
        req_pool_indices=make_int64([0, 1]),
        prefix_lens=make_int64([3, 2]),
        req_to_token=torch.arange(32, dtype=torch.int32).view(2, 16).to("cuda"),
        full_to_swa_index_mapping=None,
        verify_offsets_scratch=make_int64([0, 3, 5]),
        verify_enable=make_int32([1]),
        req_to_verify_expected_tokens=None,
        req_to_verify_expected_tokens_valid_lens=None,
        kv_token_id_vs_position_offset=0,
        swa_window_size=0,
        **{f"out_verify_{name}": make_zeros(8, dtype=torch.int64) for name in names},
    )


@pytest.mark.loader("ops.kvcache.hisparse._jit_copy_planned_module")
def test_replay_planned_copies() -> None:
    source, target = draw_normal(8, 64), make_zeros(8, 64)
    plan = make_int64([[3, 5, 0]]), make_int32([[1, 2, 0]]), make_int32([2]), make_int32([1])
    names = ("miss_src", "miss_dst", "miss_count", "num_real_reqs")
    caches = {"host_cache": source, "device_buffer": target, "item_size_bytes": 128}
    find_function("ops.kvcache.hisparse", "copy_cache_planned_mla")(
        **dict(zip(names, plan, strict=True)), **caches
    )
    compare_tensors(target[:3], torch.stack([torch.zeros(64), source[3].cpu(), source[5].cpu()]))


@pytest.mark.loader("ops.kvcache.hisparse._jit_dsv4_transfer_module")
def test_move_latents_between_pages() -> None:
    sources, targets = (
        [torch.full((2, 37440), fill, dtype=torch.uint8, device="cuda") for fill in fills]
        for fills in ((7, 9), (0, 0))
    )
    places = make_int64([3, 70]), make_int64([64, 1])
    addresses = collect_addresses(sources), collect_addresses(targets)
    find_function("ops.kvcache.hisparse", "transfer_cache_dsv4_mla")(*addresses, *places)
    for source, target in zip(sources, targets, strict=True):
        expected = torch.zeros(2, 37440, dtype=torch.uint8)
        for page, slot in ((1, 0), (0, 1)):
            expected[page, 576 * slot : 576 * slot + 576] = source.cpu()[0, 0]
            expected[page, 36864 + 8 * slot : 36872 + 8 * slot] = source.cpu()[0, 0]
        compare_tensors(target, expected)


@pytest.mark.loader("ops.kvcache.hisparse._jit_spec_module")
def test_load_tokens_of_drafts() -> None:
    steps, best, hot = 2, 1024, 2048
    tokens = torch.full((1, steps, best), -1, dtype=torch.int32)
    tokens[0, 0, :3], tokens[0, 1, :2] = torch.tensor([4, 9, 2]), torch.tensor([9, 7])
    kinds = find_function("ops.kvcache.hisparse", "HiSparseSpecState")
    state = kinds(
        torch.full((1, 2, 4096), -1, dtype=torch.int64, device="cuda"),
        make_zeros(2, hot, dtype=torch.int32),
        torch.arange(hot + 1, hot + 65, dtype=torch.int32).view(1, 64).to("cuda"),
        make_zeros(2, 5 * steps * best, dtype=torch.int32),
    )
    source, target = draw_normal(16, 64), make_zeros(hot + 65, 64)
    found = torch.full((1, steps, best), -1, dtype=torch.int32, device="cuda")
    find_function("ops.kvcache.hisparse", "load_cache_to_device_buffer_spec_mla")(
        top_k_tokens=tokens.to("cuda"),
        device_buffer_tokens=torch.full((1, hot + 1), -1, dtype=torch.int32, device="cuda"),
        host_cache_locs=torch.arange(16).view(1, 16).to("cuda"),
        device_buffer_locs=torch.arange(hot + 1, dtype=torch.int32).view(1, hot + 1).to("cuda"),
        host_cache=source,
        device_buffer=target,
        top_k_device_locs=found,
        req_pool_indices=make_int64([0]),
        seq_lens=make_int32([14, 15]),
        state=state,
        num_real_reqs=make_int32([1]),
    )
    chosen = tokens >= 0
    compare_tensors(target[found.cpu()[chosen].long()], source[tokens[chosen].long()])
