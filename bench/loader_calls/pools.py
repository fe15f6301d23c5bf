"""Calls that copy between pools, and the canary's plan."""

from __future__ import annotations

import torch

from loader_calls.tensors import (
    collect_addresses,
    draw_normal,
    find_function,
    make_int32,
    make_int64,
    make_zeros,
    register_loader,
)

_HICACHE = "ops.kvcache.hicache"
_TOKENS = [0, 1, 4, 5]


@register_loader("jit.utils.occupancy._jit_probe_module")
def count_clusters() -> None:
    find_function("jit.utils.occupancy", "get_max_active_clusters")(2, 1)


@register_loader(f"{_HICACHE}._jit_hicache_module")
def copy_rows_of_one_layer() -> None:
    module = find_function(_HICACHE, "_jit_hicache_module")(
        element_size=256, unroll=4, block_quota=2
    )
    targets = make_zeros(16, 128), make_zeros(16, 128), make_int64([1, 2])
    module.launch_one(*targets, draw_normal(16, 128), draw_normal(16, 128), make_int64([3, 4]))


@register_loader(f"{_HICACHE}._jit_hicache_staged_module")
def write_pages_back() -> None:
    write = find_function(_HICACHE, "transfer_hicache_all_layer_mla_staged_lf_pf")
    layers = [draw_normal(8, 512) for _ in range(2)]
    target = torch.zeros(8, 2, 512, dtype=torch.bfloat16).pin_memory()
    places = make_int64(_TOKENS), torch.tensor([2, 3, 6, 7])
    options = {"page_size": 2, "unroll": 4, "block_quota": 4}
    write(collect_addresses(layers), *places, make_zeros(4, 2, 512), target, **options)


@register_loader(f"{_HICACHE}._jit_hicache_page_unified_module")
def load_unified_pages() -> None:
    load = find_function(_HICACHE, "transfer_hicache_one_layer_page_unified_lf")
    source = torch.ones(3, 2, 2, 2, 2, 2, 256, dtype=torch.bfloat16).pin_memory()
    caches = make_zeros(16, 1024), make_zeros(16, 1024)
    load(*caches, source, make_int64(_TOKENS), make_int64([2, 3, 6, 7]), 1, block_quota=4)


@register_loader(f"{_HICACHE}._jit_page_unified_write_back")
def write_unified_pages_back() -> None:
    write = find_function(_HICACHE, "transfer_hicache_all_layer_staged_lf_page_unified")
    keys, values = ([draw_normal(16, 1024) for _ in range(2)] for _ in range(2))
    target = torch.zeros(4, 2, 2, 2, 2, 2, 256, dtype=torch.bfloat16).pin_memory()
    pages = make_int64([0, 2]), torch.tensor([1, 3])
    addresses = collect_addresses(keys), collect_addresses(values)
    write(*addresses, *pages, make_zeros(2, 2, 2, 2, 2, 2, 256), target)


@register_loader("ops.kv_canary.plan.entries_kernel._jit_plan_entries_module")
def plan_canary_entries() -> None:
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
