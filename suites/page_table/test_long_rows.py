"""The kernel that lists a request's pages from its length on the device, in rows of many blocks.

THE INVARIANTS IN PLAIN WORDS

1. A row lists the pages of its request, as many as its length needs, as the pool's row has them. A
   table that is just wide enough is enough.
2. A window's own table lists the same tokens' pages in the window's own pool.
3. A program writes and reads its own block of its own request's row and nothing else.
"""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures.draft_batches import DraftBatch, make_req_to_token
from fixtures.flash_attention import flashattention_backend
from fixtures.window_pools import WindowPool
from harness import checking
from harness.guards import skip_not_applicable

KERNEL = "create_trtllm_mha_kv_indices_triton"
BLOCK = 4096  # tokens per program


@st.composite
def long_batches(draw: st.DrawFn) -> DraftBatch:
    """Draw requests around whole blocks; the longest one's capacity is no power of two."""
    page = draw(st.sampled_from([64, 16, 64, 16, 1]))
    length = st.one_of(
        st.sampled_from([BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1]),
        st.integers(1, BLOCK + 200),
        st.integers(1, 130),
    )
    lengths = tuple(draw(st.lists(length, min_size=1, max_size=2, unique=True)))
    context = max(lengths) + draw(st.sampled_from([0, 1, page]))
    return DraftBatch(
        lengths=lengths,
        topk=1,
        steps=1,
        page=page,
        context=context,
        slots=len(lengths),
        first_row=draw(st.sampled_from([1, 3])),
    )


def allow_accesses(check: Any, batch: DraftBatch, window: WindowPool | None) -> None:
    def tokens(request: int, block: int) -> range:
        end = min(batch.lengths[request], (block + 1) * BLOCK)
        return range(block * BLOCK, end, batch.page)

    def own_pages(launch: Any, request: int, block: int, _: int) -> Any:
        return request, [token // batch.page for token in tokens(request, block)]

    def own_tokens(launch: Any, request: int, block: int, _: int) -> Any:
        return batch.row_of[request], list(tokens(request, block))

    def own_slots(launch: Any, request: int, block: int, _: int) -> Any:
        row = batch.row_of[request]
        return [batch.get_slot(row, token) for token in tokens(request, block)]

    nothing = {"write": lambda *program: None}
    check.allow_argument(KERNEL, "req_to_token_ptr", read=own_tokens, **nothing)
    for argument in ("page_table_ptr", *(["swa_page_table_ptr"] if window else [])):
        check.allow_argument(KERNEL, argument, write=own_pages, read=lambda *program: None)
    if window is not None:
        check.allow_argument(KERNEL, "full_to_swa_ptr", read=own_slots, **nothing)


@given(batch=long_batches(), has_window=st.booleans(), narrow=st.booleans())
def test_a_row_names_the_pages_of_its_request(
    batch: DraftBatch, has_window: bool, narrow: bool
) -> None:
    if not hasattr(flashattention_backend, "build_trtllm_mha_page_table"):
        skip_not_applicable("the host says how wide a table is")
    with checking.checked() as check:
        window = WindowPool(batch, check.device) if has_window else None
        columns = -(-(max(batch.lengths) if narrow else batch.context) // batch.page)
        tables = torch.full((2, len(batch.lengths), columns), -7, dtype=torch.int32)
        tables = tables.to(check.device)
        allow_accesses(check, batch, window)
        flashattention_backend.build_trtllm_mha_page_table(
            req_to_token=make_req_to_token(batch, check.device),
            req_pool_indices=torch.tensor(batch.row_of, device=check.device),
            cache_seqlens=torch.tensor(batch.lengths, dtype=torch.int32, device=check.device),
            page_table=tables[0],
            page_size=batch.page,
            swa_page_table=tables[1] if window is not None else None,
            full_to_swa=None if window is None else window.pool.full_to_swa_index_mapping,
        )
        for request, (row, length) in enumerate(zip(batch.row_of, batch.lengths, strict=True)):
            firsts = [batch.get_slot(row, column) for column in range(0, length, batch.page)]
            named = [[slot // batch.page for slot in firsts]]
            named += (
                [[window.to_window_slot(slot) // batch.page for slot in firsts]] if window else [[]]
            )
            for table, pages in zip(tables[:, request].tolist(), named, strict=True):
                assert table == pages + [-7] * (columns - len(pages))
