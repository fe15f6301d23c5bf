"""Calls that copy between pools, and the canary's plan."""

from __future__ import annotations

import torch

from loader_calls.tensors import (
    collect_addresses,
    find,
    int32,
    int64,
    launches,
    normal,
    zeros,
)

_HICACHE = "ops.kvcache.hicache"
_TOKENS = [0, 1, 4, 5]


@launches("jit.utils.occupancy._jit_probe_module")
def count_clusters() -> None:
    find("jit.utils.occupancy", "get_max_active_clusters")(2, 1)


@launches(f"{_HICACHE}._jit_hicache_module")
def copy_rows_of_one_layer() -> None:
    module = find(_HICACHE, "_jit_hicache_module")(element_size=256, unroll=4, block_quota=2)
    targets = zeros(16, 128), zeros(16, 128), int64([1, 2])
    module.launch_one(*targets, normal(16, 128), normal(16, 128), int64([3, 4]))


@launches(f"{_HICACHE}._jit_hicache_staged_module")
def write_pages_back() -> None:
    write = find(_HICACHE, "transfer_hicache_all_layer_mla_staged_lf_pf")
    layers = [normal(8, 512) for _ in range(2)]
    target = torch.zeros(8, 2, 512, dtype=torch.bfloat16).pin_memory()
    places = int64(_TOKENS), torch.tensor([2, 3, 6, 7])
    options = {"page_size": 2, "unroll": 4, "block_quota": 4}
    write(collect_addresses(layers), *places, zeros(4, 2, 512), target, **options)


@launches(f"{_HICACHE}._jit_hicache_page_unified_module")
def load_unified_pages() -> None:
    load = find(_HICACHE, "transfer_hicache_one_layer_page_unified_lf")
    source = torch.ones(3, 2, 2, 2, 2, 2, 256, dtype=torch.bfloat16).pin_memory()
    caches = zeros(16, 1024), zeros(16, 1024)
    load(*caches, source, int64(_TOKENS), int64([2, 3, 6, 7]), 1, block_quota=4)


@launches(f"{_HICACHE}._jit_page_unified_write_back")
def write_unified_pages_back() -> None:
    write = find(_HICACHE, "transfer_hicache_all_layer_staged_lf_page_unified")
    keys, values = ([normal(16, 1024) for _ in range(2)] for _ in range(2))
    target = torch.zeros(4, 2, 2, 2, 2, 2, 256, dtype=torch.bfloat16).pin_memory()
    pages = int64([0, 2]), torch.tensor([1, 3])
    addresses = collect_addresses(keys), collect_addresses(values)
    write(*addresses, *pages, zeros(2, 2, 2, 2, 2, 2, 256), target)


@launches("ops.kv_canary.plan.entries_kernel._jit_plan_entries_module")
def plan_canary_entries() -> None:
    names = "slot_indices expected_tokens expected_positions prev_slot_indices".split()
    find("ops.kv_canary.plan.entries_kernel", "launch_plan_entries_kernel")(
        req_pool_indices=int64([0, 1]),
        prefix_lens=int64([3, 2]),
        req_to_token=torch.arange(32, dtype=torch.int32).view(2, 16).to("cuda"),
        full_to_swa_index_mapping=None,
        verify_offsets_scratch=int64([0, 3, 5]),
        verify_enable=int32([1]),
        req_to_verify_expected_tokens=None,
        req_to_verify_expected_tokens_valid_lens=None,
        kv_token_id_vs_position_offset=0,
        swa_window_size=0,
        **{f"out_verify_{name}": zeros(8, dtype=torch.int64) for name in names},
    )
