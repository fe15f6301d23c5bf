"""Calls of compression, of block scores, and of Inkling's and FLUX's prologues."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import silu

from fixtures.loader_tensors import (
    compare_tensors,
    draw_floats,
    draw_normal,
    draw_rotations,
    find_function,
    make_empty,
    make_int32,
    make_int64,
    make_zeros,
)
from harness.sanitizer.plugins.for_sglang.formulas import normalize_rows, rotate_heads

_DSV4 = "ops.attention.dsv4"


@pytest.mark.loader("kda_kernels.flux2_qkv_epilogue_jit.flux2_qkv_epilogue_module")
def test_join_normed_text_and_image() -> None:
    image, text = ([draw_normal(size, 2, 128) for _ in range(3)] for size in (3, 1))
    weights = [draw_normal(128) for _ in range(4)]
    table = draw_floats(4, 128)
    joint = [make_empty(4, 2, 128) for _ in range(3)]
    module = find_function("kda_kernels.flux2_qkv_epilogue_jit", "flux2_qkv_epilogue_module")()
    module.flux2_qkv_epilogue(*joint, *image, *text, *weights, table, 1e-6, 1e-6)
    cos, sin = table.cpu()[:, None].chunk(2, -1)
    for place in (0, 1):
        rows = (
            normalize_rows(text[place], weights[2 + place]),
            normalize_rows(image[place], weights[place]),
        )
        compare_tensors(joint[place], rotate_heads(torch.cat(rows).cpu(), cos, sin, False), 2e-2)
    compare_tensors(joint[2], torch.cat([text[2], image[2]]))


@pytest.mark.loader(f"{_DSV4}.candidate_blocks._jit_block_amax_module")
def test_find_the_largest_score_of_blocks() -> None:
    scores = draw_floats(2, 64)
    found = find_function(f"{_DSV4}.candidate_blocks", "amax8_varlen")(
        scores, make_int32([20, 64]), out=torch.zeros(2, 8, device="cuda")
    )
    expected = scores.cpu().view(2, 8, 8).amax(-1)
    expected[0, 2] = expected[1, 7] = torch.inf  # the last block is always chosen
    expected[0, 3:] = 0
    compare_tensors(found, expected)


@pytest.mark.loader("ops.attention.minimax_decode_topk._jit_module")
def test_choose_the_best_blocks() -> None:
    scores = draw_floats(2, 2, 40)
    choose = find_function("ops.attention.minimax_decode_topk", "minimax_decode_topk")
    found = choose(scores, make_int32([40 * 128, 3 * 128]), 128, 8).cpu()
    compare_tensors(found[:, 0], scores[:, 0].cpu().topk(8).indices.sort().values)
    compare_tensors(found[:, 1], torch.tensor([0, 1, 2, *[-1] * 5]).expand(2, 8))


@pytest.mark.loader(f"{_DSV4}.compress._jit_compress_module")
def test_compress_four_rows() -> None:
    plans = find_function(f"{_DSV4}.compress", "CompressorPrefillPlan")
    tokens = torch.zeros(2, 16, dtype=torch.int32, device="cuda")
    sizes = make_int64([1]), make_int64([8]), make_int64([8]), tokens
    slots = torch.zeros(16, dtype=torch.int64, device="cuda")
    plan = plans.generate(4, *sizes, slots, 4, 4, 8, use_req_ring=True)
    rows, bias = draw_floats(8, 4 * 128), draw_floats(8, 128)
    found = find_function(f"{_DSV4}.compress", "compress_forward")(
        make_zeros(8, 4, 4 * 128, dtype=torch.float32),
        rows,
        bias,
        plan,
        head_dim=128,
        compress_ratio=4,
    )
    early, late, early_score, late_score = rows.cpu().chunk(4, -1)
    second = torch.cat([early[:4], late[4:]])
    weights = (torch.cat([early_score[:4], late_score[4:]]) + bias.cpu()).softmax(0)
    compare_tensors(found[1], (weights * second).sum(0), 1e-3)
    compare_tensors(
        found[0], ((late_score[:4] + bias.cpu()[4:]).softmax(0) * late[:4]).sum(0), 1e-3
    )


@pytest.mark.loader(f"{_DSV4}.compress._jit_compress_norm_rope_module")
def test_norm_and_store_compressed_rows() -> None:
    plans = find_function(f"{_DSV4}.compress", "CompressorDecodePlan")
    tables = make_zeros(3, 16, dtype=torch.int32), make_zeros(16, dtype=torch.int64)
    plan = plans.generate(4, make_int64([1, 2]), *tables, make_int64([8, 4]), 4, 4, True)
    cache = torch.zeros(2, 64 * 132, dtype=torch.uint8, device="cuda")
    weight = {"norm_weight": torch.ones(128, dtype=torch.bfloat16, device="cuda"), "norm_eps": 1e-6}
    place = {"out_loc": make_int64([3, 70]), "kvcache": cache, "page_size": 64}
    rows = draw_normal(2, 128)
    store = find_function(f"{_DSV4}.compress", "compress_norm_rope_store")
    store(rows, plan, **weight, freq_cis=draw_rotations(), **place)
    scales = cache.cpu()[:, 64 * 128 :].contiguous().view(torch.float32)
    lengths = torch.stack([_read_length(cache, scales, 0, 3), _read_length(cache, scales, 1, 6)])
    compare_tensors(
        lengths, normalize_rows(rows.cpu()).square().sum(-1), 2.0
    )  # rotations leave the length


def _read_length(cache: torch.Tensor, scales: torch.Tensor, page: int, slot: int) -> torch.Tensor:
    row = cache.cpu()[page, slot * 128 : slot * 128 + 128].view(torch.float8_e4m3fn).float()
    return (row * scales[page, slot]).square().sum()


@pytest.mark.loader(f"{_DSV4}.low_ratio_compress._jit_c2_module")
def test_pool_pairs_of_rows() -> None:
    rows, states, weight = draw_floats(2, 1024), draw_floats(8, 1024), draw_normal(512)
    places = make_int64([3, 6]), make_int64([0, 1]), make_int64([7, 9])
    old, new = states[2].cpu(), rows[0].cpu()  # of request 0, the place of position 2
    pool = find_function(f"{_DSV4}.low_ratio_compress", "c2_decode_norm_rope_store")
    cache = torch.zeros(2, 37440, dtype=torch.uint8, device="cuda")
    rest = 1e-6, draw_floats(32, 64), cache
    found = pool(rows, states, weight, *places, *rest, page_size=64, ring_size=4)
    shares = torch.stack([old[512:], new[512:]]).softmax(0)
    pooled = (shares * torch.stack([old[:512], new[:512]])).sum(0).bfloat16()
    compare_tensors(found[0], normalize_rows(pooled, weight.cpu()), 2e-2)
    compare_tensors(states[6], rows[1])  # an even position waits for its partner


@pytest.mark.loader("ops.attention.inkling_attn_prologue._jit_attn_prologue_module")
def test_convolve_and_norm_a_step() -> None:
    decode = find_function("ops.attention.inkling_attn_prologue", "inkling_attn_prologue_decode")
    rows, norms = draw_normal(2, 512), [draw_normal(128) for _ in range(2)]
    caches = [draw_normal(4, 3, 128) for _ in range(2)]
    taps = [draw_normal(128, 4) for _ in range(2)]
    pools = [make_zeros(8, 1, 128) for _ in range(2)]
    before = [cache.clone().cpu().float() for cache in caches]
    states = make_int32([2, 1]), torch.tensor([True, True]).to("cuda")
    sizes = 1e-6, make_int64([5, 3]), *pools, 0, 256, 384, 256, 128
    queries, keys, values, _ = decode(rows, *caches, *states, *taps, *norms, *sizes, "silu")
    heads = rows.cpu()[:, :256].view(2, 2, 128)
    compare_tensors(queries.view(2, 2, 128), normalize_rows(heads, norms[0].cpu()), 2e-2)
    for place, start in ((0, 256), (1, 384)):
        new = rows.cpu().float()[:, start : start + 128]
        history = torch.cat([before[place][[2, 1]], new[:, None]], 1)
        summed = silu((history * taps[place].cpu().float().T).sum(1)) + new
        expected = normalize_rows(summed, norms[1].cpu()) if place == 0 else summed
        compare_tensors((keys, values)[place], expected, 3e-2)
        compare_tensors(pools[place][[5, 3], 0], (keys, values)[place])


@pytest.mark.loader(f"{_DSV4}.candidate_table._jit_candidate_block_table_module", "B200")
def test_sort_chosen_blocks() -> None:
    chosen, table = make_int32([[9, 3, -1, 5], [1, 0, -1, -1]]), make_int32([[7, 4], [6, 2]])
    sort = find_function(f"{_DSV4}.candidate_table", "sort_candidate_blocks")
    pages = sort(chosen, make_int32([80, 16]), table, 64)
    padding = torch.iinfo(torch.int32).max
    compare_tensors(chosen, torch.tensor([[3, 5, 9, padding], [0, 1, padding, padding]]))
    compare_tensors(pages, torch.tensor([[59, 61, 33, padding], [48, 49, padding, padding]]))


@pytest.mark.loader("ops.speculative.sampling._jit_sampling_module")
def test_sample_along_a_chain_of_drafts() -> None:
    chosen = torch.eye(8)[[5, 2, 7]].view(1, 3, 8)  # what the target samples behind each token
    found = [
        torch.full(size, -1, dtype=torch.int32, device="cuda") for size in ((3,), (1, 3), (1,))
    ]
    tree = (make_int64([row]) for row in ([1, 5, 2], [0, 1, 2], [1, 2, -1], [-1, -1, -1]))
    samples = torch.full((1, 3), 0.5, device="cuda"), torch.full((1,), 0.5, device="cuda")
    sample = find_function("ops.speculative.sampling", "tree_speculative_sampling_target_only")
    sample(*found, *tree, *samples, chosen.to("cuda"), make_zeros(1, 3, 8, dtype=torch.float32))
    for output, expected in zip(found, ([5, 2, 7], [[0, 1, 2]], [2]), strict=True):
        compare_tensors(output, torch.tensor(expected))
