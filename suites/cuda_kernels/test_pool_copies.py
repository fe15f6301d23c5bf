"""Copies between pools: HiCache's pages, Mamba's states, page rows, and their checksums.

THE INVARIANTS IN PLAIN WORDS
- A row goes from its source slot to its target slot bit for bit, in each layer.
- No other byte of the target changes.
- A checksum of rows is Adler-32 of their bytes, one after another.
"""

from __future__ import annotations

import zlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures import cuda_kernels
from harness import checking

SLOTS, WIDTH = 8, 128
ROW_BYTES = 2 * WIDTH


@pytest.fixture(autouse=True)
def _built_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    # Copies by tensor maps are not executed here; the kernels without them do the same.
    monkeypatch.setenv("SGLANG_HICACHE_TMA_TRANSFER", "false")
    cuda_kernels.build_modules(
        "kvcache.hicache", "kvcache.nvfp4_hicache", "mamba.transfer_mamba", "memory.adler32"
    )


rows = cuda_kernels.draw_rows(0, SLOTS - 1, 4)


def draw_targets(data: st.DataObject, count: int) -> list[int]:
    drawn: list[int] = data.draw(st.permutations(range(SLOTS)))
    return drawn[:count]


@pytest.mark.parametrize("is_latent", [False, True], ids=["keys-and-values", "latent"])
@given(sources=rows, data=st.data(), wide=st.booleans(), seed=cuda_kernels.seeds)
def test_one_layers_rows_are_copied(
    is_latent: bool, sources: list[int], data: st.DataObject, wide: bool, seed: int
) -> None:
    name = "transfer_hicache_one_layer" + ("_mla" if is_latent else "")
    copy = cuda_kernels.require_kernel("kvcache.hicache", name)
    targets = draw_targets(data, len(sources))
    with checking.checked_cuda() as check:
        device = check.device
        pools = [make_pool(seed + n, device) for n in range(4)]
        wanted = [expect_copy(pools[n], pools[n + 2], sources, targets) for n in (0, 1)]
        froms, tos = index_tensor(sources, wide, device), index_tensor(targets, wide, device)
        if is_latent:
            copy(pools[2], tos, pools[0], froms)
        else:
            copy(pools[2], pools[3], tos, pools[0], pools[1], froms)
            assert pools[3].equal(wanted[1])
        assert pools[2].equal(wanted[0])


@pytest.mark.parametrize("is_latent", [False, True], ids=["keys-and-values", "latent"])
@given(sources=rows, data=st.data(), layers=st.integers(1, 3), seed=cuda_kernels.seeds)
def test_all_layers_rows_are_copied(
    is_latent: bool, sources: list[int], data: st.DataObject, layers: int, seed: int
) -> None:
    name = "transfer_hicache_all_layer" + ("_mla" if is_latent else "")
    copy = cuda_kernels.require_kernel("kvcache.hicache", name)
    targets = draw_targets(data, len(sources))
    with checking.checked_cuda() as check:
        device = check.device
        groups = [[make_pool(seed + 10 * n + m, device) for m in range(layers)] for n in range(4)]
        wanted = [
            [
                expect_copy(*pair, sources, targets)
                for pair in zip(groups[n], groups[n + 2], strict=True)
            ]
            for n in (0, 1)
        ]
        froms, tos = index_tensor(sources, True, device), index_tensor(targets, True, device)
        tables = [pointer_table(group, device) for group in groups]
        if is_latent:
            copy(
                tables[2],
                tos,
                tables[0],
                froms,
                cache_src_stride_bytes=ROW_BYTES,
                cache_dst_stride_bytes=ROW_BYTES,
            )
        else:
            copy(
                tables[2],
                tables[3],
                tos,
                tables[0],
                tables[1],
                froms,
                kv_cache_src_stride_bytes=ROW_BYTES,
                kv_cache_dst_stride_bytes=ROW_BYTES,
            )
            assert all(map(torch.equal, groups[3], wanted[1]))
        assert all(map(torch.equal, groups[2], wanted[0]))


@given(
    sources=rows,
    data=st.data(),
    layers=st.integers(1, 3),
    is_backup=st.booleans(),
    seed=cuda_kernels.seeds,
)
def test_states_go_from_layers_to_pages_and_back(
    sources: list[int], data: st.DataObject, layers: int, is_backup: bool, seed: int
) -> None:
    suffix = "lf_pf" if is_backup else "pf_lf"
    copy = cuda_kernels.require_kernel("mamba.transfer_mamba", f"transfer_kv_mamba_{suffix}")
    targets = draw_targets(data, len(sources))
    layer = data.draw(st.integers(0, layers - 1))
    with checking.checked_cuda() as check:
        device = check.device
        by_layer = [make_pool(seed + n, device) for n in range(layers)]
        drawn = [make_pool(seed + 9 + n, device) for n in range(layers)]
        by_page = torch.stack(drawn, 1).contiguous()
        froms, tos = index_tensor(sources, True, device), index_tensor(targets, True, device)
        if is_backup:
            wanted = by_page.clone()
            wanted[targets] = torch.stack(by_layer, 1)[sources]
            table = pointer_table(by_layer, device)
            copy(table, by_page, froms, tos, ROW_BYTES, layers * ROW_BYTES, layers)
            assert by_page.equal(wanted)
        else:
            wanted = by_layer[layer].clone()
            wanted[targets] = by_page[sources, layer]
            copy(by_page, by_layer[layer], froms, tos, layer, ROW_BYTES, layers * ROW_BYTES)
            assert by_layer[layer].equal(wanted)


@given(
    sources=rows,
    data=st.data(),
    layers=st.integers(1, 3),
    wide=st.booleans(),
    seed=cuda_kernels.seeds,
)
def test_page_rows_are_loaded(
    sources: list[int], data: st.DataObject, layers: int, wide: bool, seed: int
) -> None:
    copy = cuda_kernels.require_kernel("kvcache.nvfp4_hicache", "transfer_page_rows")
    targets = draw_targets(data, len(sources))
    with checking.checked_cuda() as check:
        device = check.device
        hosts = [make_pool(seed + n, device) for n in range(layers)]
        pools = [make_pool(seed + 9 + n, device) for n in range(layers)]
        wanted = [expect_copy(*pair, sources, targets) for pair in zip(hosts, pools, strict=True)]
        copy(
            pointer_table(hosts, device),
            pointer_table(pools, device),
            index_tensor(sources, wide, device),
            index_tensor(targets, wide, device),
            host_stride=ROW_BYTES,
            device_stride=ROW_BYTES,
            row_bytes=ROW_BYTES,
            load=True,
        )
        assert all(map(torch.equal, pools, wanted))


@given(
    chosen=st.lists(rows, min_size=1, max_size=3), size=st.integers(1, 70), seed=cuda_kernels.seeds
)
def test_a_checksum_is_that_of_the_rows_bytes(
    chosen: list[list[int]], size: int, seed: int
) -> None:
    checksum = cuda_kernels.require_kernel("memory.adler32", "adler32_strided_checksum")
    with checking.checked_cuda() as check:
        device = check.device
        generator = torch.Generator().manual_seed(seed)
        pools = [
            torch.randint(0, 256, (SLOTS, size), generator=generator).to(torch.uint8).to(device)
            for _ in chosen
        ]
        found = checksum(
            [pool.data_ptr() for pool in pools],
            [size] * len(pools),
            [torch.tensor(own, device=device) for own in chosen],
        )
        content = b"".join(
            bytes(pool[row].tolist())
            for pool, own in zip(pools, chosen, strict=True)
            for row in own
        )
        assert found == zlib.adler32(content)


def make_pool(seed: int, device: str) -> torch.Tensor:
    return cuda_kernels.draw_normal(seed, SLOTS, WIDTH, device=device)


def expect_copy(
    source: torch.Tensor, target: torch.Tensor, sources: list[int], targets: list[int]
) -> torch.Tensor:
    wanted = target.clone()
    wanted[targets] = source[sources]
    return wanted


def pointer_table(pools: list[torch.Tensor], device: str) -> torch.Tensor:
    return torch.tensor([pool.data_ptr() for pool in pools], device=device).view(torch.uint64)


def index_tensor(rows: list[int], wide: bool, device: str) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int64 if wide else torch.int32, device=device)
