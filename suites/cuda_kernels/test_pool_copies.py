"""Copies between pools: HiCache's pages, Mamba's states, page rows, and their checksums.

THE INVARIANTS IN PLAIN WORDS
- A row goes from its source slot to its target slot bit for bit, in each layer.
- No other byte of the target changes.
- A checksum of rows is Adler-32 of their bytes, one after another.
"""

from __future__ import annotations

import zlib
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures import cuda_kernels
from fixtures.cuda_kernels import KernelDraw
from fixtures.stand_ins.operator_calls import INDICES
from harness.runs.zoo.formulas import Formula, FormulaList, Pair

SLOTS, WIDTH = 8, 128
ROW_BYTES = 2 * WIDTH

formula = FormulaList()


@pytest.fixture(autouse=True)
def _built_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    # Copies by tensor maps are not executed here; the kernels without them do the same.
    monkeypatch.setenv("SGLANG_HICACHE_TMA_TRANSFER", "false")
    cuda_kernels.build_modules(*cuda_kernels.list_modules(formula))


def draw_rows(draw: KernelDraw, dtype: torch.dtype = torch.int64) -> list[torch.Tensor]:
    """Draw the rows that are copied, and those that they come to."""
    count = draw.between(1, 4)
    return [draw.permutation(SLOTS)[:count].to(dtype) for _ in range(2)]


def draw_pools(draw: KernelDraw, count: int) -> list[torch.Tensor]:
    return [draw.halves(SLOTS, WIDTH) for _ in range(count)]


def copy_rows(source: torch.Tensor, target: torch.Tensor, rows: list[torch.Tensor]) -> torch.Tensor:
    """Return what a target should come to hold."""
    wanted = target.clone()
    wanted[rows[1].long()] = source[rows[0].long()]
    return wanted


def collect_addresses(pools: list[torch.Tensor], device: str) -> torch.Tensor:
    return torch.tensor([pool.data_ptr() for pool in pools], device=device).view(torch.uint64)


def copy_one_layer(draw: KernelDraw, run: Any, count: int) -> Pair:
    """Copy rows of keys and values, or of the one pool that latent keys have."""
    rows = draw_rows(draw, draw.one_of(*INDICES))
    sources, targets = draw_pools(draw, count), draw_pools(draw, count)
    wanted = [copy_rows(*pair, rows) for pair in zip(sources, targets, strict=True)]
    run(*targets, rows[1], *sources, rows[0])
    return targets, wanted


def copy_all_layers(draw: KernelDraw, run: Any, count: int) -> Pair:
    rows, layers = draw_rows(draw), draw.between(1, 3)
    sources, targets = (draw_pools(draw, count * layers) for _ in range(2))
    wanted = [copy_rows(*pair, rows) for pair in zip(sources, targets, strict=True)]
    froms, tos = (
        [
            collect_addresses(pools[n : n + layers], draw.device)
            for n in range(0, len(pools), layers)
        ]
        for pools in (sources, targets)
    )
    prefix = "kv_cache" if count == 2 else "cache"
    strides = {f"{prefix}_{side}_stride_bytes": ROW_BYTES for side in ("src", "dst")}
    run(*tos, rows[1], *froms, rows[0], **strides)
    return targets, wanted


for name, suffix, count in (("keys_and_values", "", 2), ("latent", "_mla", 1)):
    for copy, which in ((copy_one_layer, "one_layer"), (copy_all_layers, "all_layer")):
        launcher = f"kvcache.hicache:transfer_hicache_{which}{suffix}"
        formula.add_variants(copy, launcher, **{f"{which}_of_{name}": {"count": count}})


@formula("mamba.transfer_mamba:transfer_kv_mamba_lf_pf")
def states_go_from_layers_to_pages(draw: KernelDraw, run: Any) -> Pair:
    rows, layers = draw_rows(draw), draw.between(1, 3)
    by_layer, by_page = draw_pools(draw, layers), draw.halves(SLOTS, layers, WIDTH)
    wanted = copy_rows(torch.stack(by_layer, 1), by_page, rows)
    table = collect_addresses(by_layer, draw.device)
    run(table, by_page, *rows, ROW_BYTES, layers * ROW_BYTES, layers)
    return [by_page], [wanted]


@formula("mamba.transfer_mamba:transfer_kv_mamba_pf_lf")
def states_go_from_pages_to_a_layer(draw: KernelDraw, run: Any) -> Pair:
    rows, layers = draw_rows(draw), draw.between(1, 3)
    layer, by_page = draw.between(0, layers - 1), draw.halves(SLOTS, layers, WIDTH)
    (target,) = draw_pools(draw, 1)
    wanted = copy_rows(by_page[:, layer], target, rows)
    run(by_page, target, *rows, layer, ROW_BYTES, layers * ROW_BYTES)
    return [target], [wanted]


@formula("kvcache.nvfp4_hicache:transfer_page_rows")
def page_rows_are_loaded(draw: KernelDraw, run: Any) -> Pair:
    rows, layers = draw_rows(draw, draw.one_of(*INDICES)), draw.between(1, 3)
    hosts, pools = draw_pools(draw, layers), draw_pools(draw, layers)
    wanted = [copy_rows(*pair, rows) for pair in zip(hosts, pools, strict=True)]
    tables = [collect_addresses(side, draw.device) for side in (hosts, pools)]
    sizes = dict.fromkeys(("host_stride", "device_stride", "row_bytes"), ROW_BYTES)
    run(*tables, *rows, **sizes, load=True)
    return pools, wanted


@formula("memory.adler32:adler32_strided_checksum")
def a_checksum_is_that_of_the_rows_bytes(draw: KernelDraw, run: Any) -> Pair:
    count, size = draw.between(1, 3), draw.between(1, 70)
    pools = [draw.integers(0, 256, SLOTS, size).to(torch.uint8) for _ in range(count)]
    chosen = [draw_rows(draw)[0] for _ in pools]
    found = run([pool.data_ptr() for pool in pools], [size] * count, chosen)
    parts = [pool[own].flatten() for pool, own in zip(pools, chosen, strict=True)]
    wanted = zlib.adler32(bytes(torch.cat(parts).tolist()))
    return [torch.tensor(found)], [torch.tensor(wanted)]


@pytest.mark.parametrize("kernel", formula.formulas, ids=lambda kernel: kernel.name)
@given(data=st.data())
def test_a_kernel_copies_its_rows(kernel: Formula, data: st.DataObject) -> None:
    cuda_kernels.compare_kernel(kernel, data, relative=0, absolute=0)
