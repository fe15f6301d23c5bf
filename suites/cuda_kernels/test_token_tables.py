"""Tables that SGLang's CUDA kernels fill before attention: metadata, schedules, tokens' histories.

THE INVARIANTS IN PLAIN WORDS
- Copied metadata equals its source, and no other place of a longer table changes.
- A schedule gives each part of the card the same number of blocks, or one more, in order.
- An n-gram ends at the request's start, behind an ignored token, and behind an end of text.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures import cuda_kernels
from harness import checking

CONTEXT, SPLIT, END = 12, 256, 3  # columns of a table, tokens of a block, the end of text


pytestmark = pytest.mark.prepared(
    by=cuda_kernels.build_modules,
    names=(
        "attention.dsa.fused_metadata_copy",
        "attention.dsv4.attn",
        "embeddings.ngram_embedding",
    ),
)


@given(
    requests=st.integers(1, 4),
    longest=st.integers(1, 5),
    spare=st.integers(0, 3),
    seed=cuda_kernels.seeds,
)
def test_metadata_of_a_decode_step_are_copied(
    requests: int, longest: int, spare: int, seed: int
) -> None:
    copy = cuda_kernels.require_kernel(
        "attention.dsa.fused_metadata_copy", "fused_metadata_copy_cuda"
    )
    with checking.checked_cuda() as check:
        device = check.device
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> torch.Tensor:
            drawn = torch.randint(0, 1000, shape, generator=generator, dtype=torch.int32)
            return drawn.to(device)

        sources = [draw(requests), draw(requests + 1), draw(requests, longest), draw(requests)]
        last = draw(requests + 1)
        targets = [
            draw(requests),
            draw(requests + 1),
            draw(requests, longest + spare),
            draw(requests),
        ]
        last_target = draw(requests + 1)
        wanted = targets[2].clone()
        wanted[:, :longest] = sources[2]
        firsts = [int(targets[1][0]), int(last_target[0])]
        copy(
            *(*sources, None, last, None, None, None),
            *(*targets, None, last_target, None, None, None),
            *(0, requests, longest, longest, requests),
        )
        assert targets[2].equal(wanted)
        assert targets[0].equal(sources[0])
        assert targets[3].equal(sources[3])
        assert targets[1].tolist() == [firsts[0], *sources[1].tolist()[1:]]
        assert last_target.tolist() == [firsts[1], *last.tolist()[1:]]


@given(
    lengths=st.lists(st.integers(0, 2000), min_size=1, max_size=80),
    parts=st.integers(1, 140),
)
def test_blocks_are_shared_out_evenly(lengths: list[int], parts: int) -> None:
    plan = cuda_kernels.require_kernel("attention.dsv4.attn", "get_paged_mqa_logits_metadata")
    with checking.checked_cuda() as check:
        found = plan(
            torch.tensor(lengths, dtype=torch.int32, device=check.device), 64, parts
        ).tolist()
    blocks = [-(-length // SPLIT) for length in lengths]
    total = sum(blocks)
    begins = [0]
    for count in blocks:
        begins.append(begins[-1] + count)
    starts = [begins[request] + offset for request, offset in found]
    assert starts[0] == 0
    assert starts[-1] == total
    assert all(total // parts <= b - a <= -(-total // parts) for a, b in itertools.pairwise(starts))
    for request, offset in found:
        assert offset < (blocks[request] if request < len(lengths) else 1)


requests = st.lists(
    st.tuples(st.lists(st.integers(-2, 6), max_size=4), st.lists(st.integers(0, 6), max_size=4)),
    min_size=1,
    max_size=3,
).filter(lambda drawn: any(new for _, new in drawn))


@given(requests=requests, longest=st.integers(2, 4), hashes=st.integers(1, 2), data=st.data())
def test_an_n_gram_is_hashed_from_its_requests_history(
    requests: list[tuple[list[int], list[int]]], longest: int, hashes: int, data: st.DataObject
) -> None:
    hash_all = cuda_kernels.require_kernel("embeddings.ngram_embedding", "compute_n_gram_ids")
    hash_last = cuda_kernels.require_kernel(
        "embeddings.ngram_embedding", "compute_n_gram_ids_decode"
    )
    update = cuda_kernels.require_kernel("embeddings.ngram_embedding", "update_token_table")
    step = cuda_kernels.require_kernel("embeddings.ngram_embedding", "update_token_table_decode")
    count = len(requests)
    rows = data.draw(st.permutations(range(count + 1)))[:count]
    ignored = data.draw(st.lists(st.integers(1, 6), max_size=2))
    weights = [
        [[data.draw(st.integers(1, 9)) for _ in range(longest)] for _ in range(hashes)]
        for _ in range(longest - 1)
    ]
    mods = [[data.draw(st.integers(2, 50)) for _ in range(hashes)] for _ in range(longest - 1)]
    sizes = [0]
    for mod in (one for own in mods for one in own):
        sizes.append(sizes[-1] + mod)
    with checking.checked_cuda() as check:
        device = check.device

        def ints(values: object) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int32, device=device)

        table = torch.zeros(count + 1, CONTEXT, dtype=torch.int32, device=device)
        for row, (old, _) in zip(rows, requests, strict=True):
            table[row, : len(old)] = ints(old)
        tokens = [token for _, new in requests for token in new]
        places = torch.tensor(rows, device=device)
        columns = ints([len(old) for old, _ in requests])
        lengths = [len(new) for _, new in requests]
        update(ints(tokens), table, places, columns, ints(lengths), ints(ignored))
        histories = [
            [*old, *(-token if token in ignored else token for token in new)]
            for old, new in requests
        ]
        for row, history in zip(rows, histories, strict=True):
            assert table[row, : len(history)].tolist() == history
        sums = [sum(lengths[:place]) for place in range(count + 1)]
        shared = longest, hashes, ints(weights), ints(mods), ints(sizes)
        ids = torch.empty(len(tokens), (longest - 1) * hashes, dtype=torch.int32, device=device)
        hash_all(*shared, ints(tokens), ints(sums), table, places, columns, ids, END)
        check.assert_written(ids)
        wanted = [
            hash_n_grams(history[: len(old) + place + 1], weights, mods, sizes)
            for (old, new), history in zip(requests, histories, strict=True)
            for place in range(len(new))
        ]
        assert ids.tolist() == wanted
        news = [data.draw(st.integers(0, 6)) for _ in requests]
        ends = ints([len(history) for history in histories])
        step(ints(news), table, places, ends)
        lasts = torch.empty(count, (longest - 1) * hashes, dtype=torch.int32, device=device)
        hash_last(*shared, table, places, ends, lasts, END)
        assert lasts.tolist() == [
            hash_n_grams([*history, new], weights, mods, sizes)
            for history, new in zip(histories, news, strict=True)
        ]


def hash_n_grams(
    history: list[int], weights: list[list[list[int]]], mods: list[list[int]], sizes: list[int]
) -> list[int]:
    """Return an id for each length and hash: of the last tokens, the newest first."""
    ids = []
    for shorter, (own_weights, own_mods) in enumerate(zip(weights, mods, strict=True)):
        for number, (weight, mod) in enumerate(zip(own_weights, own_mods, strict=True)):
            total = 0
            for back, token in enumerate(reversed(history[-(shorter + 2) :])):
                if token < 0 or (token == END and back):
                    break
                total += token * weight[back] % mod
            ids.append(total % mod + sizes[shorter * len(own_mods) + number])
    return ids
