"""Keys and values on their way into the pools, as SGLang's CUDA kernels write them.

THE INVARIANTS IN PLAIN WORDS
- A token's row lands in its slot bit for bit, and no other slot changes.
- A row that is quantized is what its scale and the format's rounding say.
- A layer's cache may be a view of a larger pool; other layers' bytes are not touched.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures import cuda_kernels
from harness import checking
from harness.guards.cells import enable_where_missing

SLOTS, WIDTH = 12, 128
FP8 = torch.float8_e4m3fn


pytestmark = pytest.mark.prepared(
    by=cuda_kernels.build_modules,
    names=(
        "attention.concat_mla",
        "attention.dsv4.attn",
        "attention.set_mla_kv_concat_q",
        "kvcache.dsa_fused_store_index_cache",
        "kvcache.fused_fp8_qkv_kv_cache",
        "kvcache.kvcache",
        "kvcache.minimax_store_kv_index",
        "kvcache.set_mla_kv_buffer",
    ),
)

slots = cuda_kernels.draw_rows(0, SLOTS - 1, 6)


@given(slots=slots, seed=cuda_kernels.seeds, wide=st.booleans(), layers=st.integers(1, 3))
def test_rows_are_stored_in_their_slots(
    slots: list[int], seed: int, wide: bool, layers: int
) -> None:
    store = cuda_kernels.require_kernel("kvcache.kvcache", "store_cache")
    with checking.checked_cuda() as check:
        device = check.device
        keys, values = draw_rows(seed, len(slots), device), draw_rows(seed + 1, len(slots), device)
        pools = [cuda_kernels.StridedPool(SLOTS, 1, WIDTH, layers, device) for _ in range(2)]
        caches = [pool.cache[:, 0] for pool in pools]
        store(keys, values, *caches, index_tensor(slots, wide, device))
        for pool, rows in zip(pools, (keys, values), strict=True):
            for place, slot in enumerate(slots):
                if slot:  # slot 0 is that of padding
                    pool.expected_layer[slot, 0] = rows[place]
            assert pool.list_differences() == []


@given(slots=slots, seed=cuda_kernels.seeds, wide=st.booleans())
def test_latent_rows_are_stored_in_their_slots(slots: list[int], seed: int, wide: bool) -> None:
    store = cuda_kernels.require_kernel("kvcache.set_mla_kv_buffer", "set_mla_kv_buffer")
    with checking.checked_cuda() as check:
        device = check.device
        latent = draw_rows(seed, len(slots), device, 512)
        rotated = draw_rows(seed + 1, len(slots), device, 64)
        cache = torch.zeros(SLOTS, 1, 576, dtype=torch.bfloat16, device=device)
        store(cache, index_tensor(slots, wide, device), latent[:, None], rotated[:, None])
        wanted = torch.zeros_like(cache)
        rows = torch.cat([latent, rotated], 1)
        for place, slot in enumerate(slots):
            wanted[slot, 0] = rows[place]
        assert cache[1:].equal(wanted[1:])
        # The slot of padding keeps what it has; releases before may store a row that names it.
        named = [row for row, slot in zip(rows, slots, strict=True) if slot == 0]
        allowed = [torch.zeros_like(rows[0])]
        allowed += [] if cuda_kernels.keeps_padding_slot() else named
        assert any(cache[0, 0].equal(row) for row in allowed)


@given(slots=slots, seed=cuda_kernels.seeds, wide=st.booleans(), heads=st.integers(1, 3))
def test_a_query_is_put_together_while_its_latent_row_is_stored(
    slots: list[int], seed: int, wide: bool, heads: int
) -> None:
    name = "set_mla_kv_concat_q"
    store = cuda_kernels.require_kernel(f"attention.{name}", name)
    with checking.checked_cuda() as check:
        device, count = check.device, len(slots)
        latent, rotated = (
            draw_rows(seed, count, device, 512),
            draw_rows(seed + 1, count, device, 64),
        )
        queries = draw_rows(seed + 2, count * heads, device, 512).view(count, heads, 512)
        turned = draw_rows(seed + 3, count * heads, device, 64).view(count, heads, 64)
        cache = torch.zeros(SLOTS, 576, dtype=torch.bfloat16, device=device)
        found = store(cache, index_tensor(slots, wide, device), latent, rotated, queries, turned)
        wanted = torch.zeros_like(cache)
        wanted[slots] = torch.cat([latent, rotated], -1)
        assert cache.equal(wanted)
        assert found.equal(torch.cat([queries, turned], -1))


@given(tokens=st.integers(1, 3), heads=st.integers(1, 3), seed=cuda_kernels.seeds)
def test_parts_of_heads_are_put_together(tokens: int, heads: int, seed: int) -> None:
    join_keys = cuda_kernels.require_kernel("attention.concat_mla", "concat_mla_k")
    join_queries = cuda_kernels.require_kernel("attention.concat_mla", "concat_mla_absorb_q")
    with checking.checked_cuda() as check:
        device = check.device
        plain = draw_rows(seed, tokens * 128, device).view(tokens, 128, 128)
        rotated = draw_rows(seed + 1, tokens, device, 64).view(tokens, 1, 64)
        keys = torch.empty(tokens, 128, 192, dtype=torch.bfloat16, device=device)
        join_keys(keys, plain, rotated)
        check.assert_written(keys)
        assert keys.equal(torch.cat([plain, rotated.expand(-1, 128, -1)], -1))
        absorbed = draw_rows(seed, tokens * heads, device, 512).view(tokens, heads, 512)
        turned = draw_rows(seed + 1, tokens * heads, device, 64).view(tokens, heads, 64)
        assert join_queries(absorbed, turned).equal(torch.cat([absorbed, turned], -1))


@given(slots=slots, seed=cuda_kernels.seeds, has_values=st.booleans(), heads=st.integers(1, 2))
def test_index_keys_are_stored_beside_the_heads(
    slots: list[int], seed: int, has_values: bool, heads: int
) -> None:
    store = cuda_kernels.require_kernel("kvcache.minimax_store_kv_index", "store_kv_index")
    with checking.checked_cuda() as check:
        device, count = check.device, len(slots)
        sizes = [heads, heads, 1, 1 if has_values else 0]
        rows = [
            draw_rows(seed + n, count, device, max(size, 1) * WIDTH) for n, size in enumerate(sizes)
        ]
        caches = [
            torch.zeros(SLOTS, max(size, 1) * WIDTH, dtype=torch.bfloat16, device=device)
            for size in sizes
        ]
        keys, values, index_keys, index_values = rows
        key_cache, value_cache, index_key_cache, index_value_cache = caches
        store(
            keys,
            values,
            key_cache,
            value_cache,
            index_keys,
            index_key_cache,
            index_values if has_values else None,
            index_value_cache if has_values else None,
            torch.tensor(slots, device=device),
            num_kv_heads=heads,
            head_bytes=2 * WIDTH,
        )
        for row, cache, size in zip(rows, caches, sizes, strict=True):
            wanted = torch.zeros_like(cache)
            if size:
                wanted[slots] = row
            assert cache.equal(wanted)


@pytest.mark.guards("fp8-store-strided-cache")
@pytest.mark.prepared(by=cuda_kernels.build_modules, names=("kvcache.fused_fp8_qkv_kv_cache",))
@given(
    slots=slots,
    seed=cuda_kernels.seeds,
    layers=st.integers(1, 3),
    scale=st.sampled_from([0.5, 1.0, 2.0]),
    width=st.sampled_from([WIDTH, 100, 64]),  # 100: no whole vectors
    query_width=st.sampled_from([0, 2 * WIDTH, 100]),
    is_split=st.booleans(),
)
def test_rows_are_stored_as_fp8(
    slots: list[int],
    seed: int,
    layers: int,
    scale: float,
    width: int,
    query_width: int,
    is_split: bool,
) -> None:
    store = require_fp8_store()
    with checking.checked_cuda() as check:
        device, widths = check.device, [query_width, width, width]
        joined = draw_rows(seed, len(slots), device, sum(widths))
        # Views of the rows of one projection, or tensors of their own.
        parts = [part if is_split else part.contiguous() for part in joined.split(widths, 1)]
        queries, keys, values = parts
        pools = [cuda_kernels.StridedPool(SLOTS, 1, width, layers, device, FP8) for _ in range(2)]
        caches = [pool.cache[:, 0] for pool in pools]
        factor = torch.tensor(scale, device=device)
        quantized = store(
            queries if query_width else None,
            *(keys, values, *caches),
            *(torch.tensor(slots, device=device), factor, factor),
        )
        for rows, pool in zip((keys, values), pools, strict=True):
            pool.expected_layer[slots, 0] = (rows.float() / scale).to(FP8)
            assert pool.list_differences() == []
        if query_width:
            assert quantized.float().equal(queries.float().to(FP8).float())


@pytest.mark.parametrize("distance", [0, 1 << 31], ids=["near", "far"])
def test_rows_are_stored_as_fp8_however_far_apart_they_lie(distance: int) -> None:
    store = require_fp8_store()
    with enable_where_missing("fp8-store-strided-cache"), checking.checked_cuda() as check:
        device = check.device

        def make_rows(dtype: torch.dtype) -> torch.Tensor:
            return checking.virtual_zeros((2, WIDTH + distance), dtype, device)[:, :WIDTH]

        queries, keys, values = (make_rows(torch.bfloat16) for _ in range(3))
        for seed, rows in enumerate((queries, keys, values)):
            rows.copy_(draw_rows(seed, 2, device))
        caches = [make_rows(FP8) for _ in range(2)]
        one = torch.tensor(1.0, device=device)
        quantized = store(queries, keys, values, *caches, torch.tensor([1, 0]).to(device), one, one)
        assert quantized.float().equal(queries.float().to(FP8).float())
        for rows, cache in zip((keys, values), caches, strict=True):
            assert cache.float().equal(rows.flip(0).float().to(FP8).float())


def require_fp8_store() -> Any:
    name = "fused_fp8_qkv_kv_cache"
    return cuda_kernels.fail_on_refusal(cuda_kernels.require_kernel(f"kvcache.{name}", name))


@pytest.mark.parametrize("kind", ["dsa", "dsv4"])
@given(slots=cuda_kernels.draw_rows(0, 127, 6), seed=cuda_kernels.seeds)
def test_index_keys_are_stored_with_their_scales(kind: str, slots: list[int], seed: int) -> None:
    store = require_index_store(kind)
    page, pages = 64, 2
    with checking.checked_cuda() as check:
        device = check.device
        keys = draw_rows(seed, len(slots), device)
        cache = torch.zeros(pages, page * (WIDTH + 4), dtype=torch.uint8, device=device)
        store(keys, cache, torch.tensor(slots, device=device))
        found = cache.cpu()
        rows = found[:, : page * WIDTH].reshape(pages * page, WIDTH).view(FP8)
        scales = found[:, page * WIDTH :].contiguous().view(torch.float32).reshape(-1)
        scale = keys.float().abs().amax(-1).clamp(min=1e-4).cpu() / 448
        torch.testing.assert_close(scales[slots], scale, rtol=1e-6, atol=0)
        restored = rows[slots].float() * scales[slots, None]
        torch.testing.assert_close(restored, keys.float().cpu(), rtol=0.0626, atol=1e-3)
        others = [slot for slot in range(pages * page) if slot not in slots]
        assert not scales[others].any()
        assert not rows[others].float().any()


@given(slots=cuda_kernels.draw_rows(0, 127, 4), seed=cuda_kernels.seeds)
def test_latent_rows_are_stored_with_a_scale_for_64_values(slots: list[int], seed: int) -> None:
    store = cuda_kernels.require_kernel("attention.dsv4.attn", "fused_store_cache")
    page, pages, row_bytes = 64, 2, 576
    with checking.checked_cuda() as check:
        device = check.device
        rows = draw_rows(seed, len(slots), device, 512)
        size = -(-584 * page // 576) * 576
        cache = torch.zeros(pages, size, dtype=torch.uint8, device=device)
        store(rows, cache, torch.tensor(slots, device=device), page_size=page, type="flashmla")
        found = cache.cpu()
        for row, slot in zip(rows.cpu(), slots, strict=True):
            own = found[slot // page]
            data = own[slot % page * row_bytes :][:row_bytes]
            scales = own[page * row_bytes + slot % page * 8 :][:7]
            assert data[448:].clone().view(torch.bfloat16).equal(row[448:])
            exponents = torch.exp2(scales.float() - 127)
            restored = data[:448].clone().view(FP8).float().view(7, 64) * exponents[:, None]
            exact = row[:448].float().view(7, 64)
            assert (restored.abs() <= 448 * exponents[:, None]).all()
            torch.testing.assert_close(restored, exact, rtol=0.0626, atol=1e-2)
            largest = exact.abs().amax(-1)
            assert (exponents * 448 >= largest * 0.999).all()
            assert (exponents * 448 <= largest * 2.001).all()


def require_index_store(kind: str) -> Any:
    if kind == "dsa":
        module = "kvcache.dsa_fused_store_index_cache"
        return cuda_kernels.require_kernel(module, "fused_store_index_k_cache")
    store = cuda_kernels.require_kernel("attention.dsv4.attn", "fused_store_cache")
    return lambda keys, cache, slots: store(keys, cache, slots, page_size=64, type="indexer")


def draw_rows(seed: int, rows: int, device: str, width: int = WIDTH) -> torch.Tensor:
    return cuda_kernels.draw_normal(seed, rows, width, device=device)


def index_tensor(slots: list[int], wide: bool, device: str) -> torch.Tensor:
    return torch.tensor(slots, dtype=torch.int64 if wide else torch.int32, device=device)
