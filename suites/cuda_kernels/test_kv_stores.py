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
from fixtures.cuda_kernels import KernelDraw
from fixtures.stand_ins.operator_calls import INDICES
from harness import checking
from harness.guards.cells import enable_where_missing
from harness.runs.zoo.formulas import Formula, FormulaList, Pair
from harness.sanitizer.plugins.for_sglang.formulas import store_rows

SLOTS, WIDTH = 12, 128
FP8 = torch.float8_e4m3fn


formula = FormulaList()

slots = cuda_kernels.draw_rows(0, SLOTS - 1, 6)


def draw_slots(draw: KernelDraw) -> torch.Tensor:
    return draw.permutation(SLOTS)[: draw.between(1, 6)].to(draw.one_of(*INDICES))


def fill_cache(rows: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Return a cache of zeros with these rows."""
    cache = rows.new_zeros(SLOTS, *rows.shape[1:])
    store_rows(rows, cache, slots)
    return cache


@formula("kvcache.kvcache:store_cache")
def rows_are_stored_in_their_slots(draw: KernelDraw, run: Any) -> Pair:
    slots, layers = draw_slots(draw), draw.between(1, 3)
    rows = [draw.halves(len(slots), WIDTH) for _ in range(2)]
    pools = [cuda_kernels.StridedPool(SLOTS, 1, WIDTH, layers, draw.device) for _ in rows]
    run(*rows, *(pool.cache[:, 0] for pool in pools), slots)
    written = slots > 0  # slot 0 is that of padding
    for pool, own in zip(pools, rows, strict=True):
        pool.expected_layer[slots[written].long(), 0] = own[written]
    return [pool.found for pool in pools], [pool.expected for pool in pools]


@formula("kvcache.set_mla_kv_buffer:set_mla_kv_buffer")
def latent_rows_are_stored_in_their_slots(draw: KernelDraw, run: Any) -> Pair:
    slots = draw_slots(draw)
    rows, cache = draw.halves(len(slots), 1, 576), draw.zeros(SLOTS, 1, 576)
    latent, rotated = (part.contiguous() for part in rows.split([512, 64], -1))
    run(cache, slots, latent, rotated)
    wanted = fill_cache(rows, slots)
    # The slot of padding keeps what it has; releases before may store a row that names it.
    if cuda_kernels.keeps_padding_slot() or not cache[0].equal(wanted[0]):
        wanted[0] = 0
    return [cache], [wanted]


@formula("attention.set_mla_kv_concat_q:set_mla_kv_concat_q")
def a_query_is_put_together_while_its_latent_row_is_stored(draw: KernelDraw, run: Any) -> Pair:
    slots, heads = draw_slots(draw), draw.between(1, 3)
    rows, queries = (draw.halves(len(slots), count, 576) for count in (1, heads))
    parts = [part.contiguous() for part in rows[:, 0].split([512, 64], -1)]
    parts += [part.contiguous() for part in queries.split([512, 64], -1)]
    cache = draw.zeros(SLOTS, 576)
    return [run(cache, slots, *parts), cache], [queries, fill_cache(rows[:, 0], slots)]


@formula("attention.concat_mla:concat_mla_k")
def parts_of_keys_are_put_together(draw: KernelDraw, run: Any) -> Pair:
    tokens = draw.between(1, 3)
    plain, rotated = draw.halves(tokens, 128, 128), draw.halves(tokens, 1, 64)
    keys = draw.empty(tokens, 128, 192)
    run(keys, plain, rotated)
    return [keys], [torch.cat([plain, rotated.expand(-1, 128, -1)], -1)]


@formula("attention.concat_mla:concat_mla_absorb_q")
def parts_of_queries_are_put_together(draw: KernelDraw, run: Any) -> Pair:
    tokens, heads = draw.between(1, 3), draw.between(1, 3)
    parts = [draw.halves(tokens, heads, width) for width in (512, 64)]
    return [run(*parts)], [torch.cat(parts, -1)]


@formula("kvcache.minimax_store_kv_index:store_kv_index")
def index_keys_are_stored_beside_the_heads(draw: KernelDraw, run: Any) -> Pair:
    slots, heads, has_values = draw_slots(draw).long(), draw.between(1, 2), draw.flag()
    rows = [draw.halves(len(slots), count * WIDTH) for count in (heads, heads, 1, 1)]
    caches = [draw.zeros(SLOTS, own.shape[1]) for own in rows]
    last = [(rows[3], caches[3]), (None, None)][not has_values]
    sizes = {"num_kv_heads": heads, "head_bytes": 2 * WIDTH}
    run(*rows[:2], *caches[:2], rows[2], caches[2], *last, slots, **sizes)
    wanted = [fill_cache(own, slots) for own in rows]
    return caches, wanted if has_values else [*wanted[:3], torch.zeros_like(caches[3])]


pytestmark = pytest.mark.prepared(
    by=cuda_kernels.build_modules,
    names=(
        "attention.dsv4.attn",
        "kvcache.dsa_fused_store_index_cache",
        "kvcache.fused_fp8_qkv_kv_cache",
        *cuda_kernels.list_modules(formula),
    ),
)


@pytest.mark.parametrize("kernel", formula.formulas, ids=lambda kernel: kernel.name)
@given(data=st.data())
def test_a_kernel_stores_its_rows(kernel: Formula, data: st.DataObject) -> None:
    cuda_kernels.compare_kernel(kernel, data, relative=0, absolute=0)


@pytest.mark.guards("fp8-store-strided-cache")
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
