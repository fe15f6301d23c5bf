"""Rows that several programs write: from the release on that splits long rows among them.

THE INVARIANTS IN PLAIN WORDS

1. Whatever the number of programs per row, each writes its part and the row is the same.
2. There are enough programs: none copies more than a piece, unless the useful maximum runs. There
   are no more than a row has pieces, and on a server of short contexts there is one.
"""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fixtures import kv_indices as adapter
from fixtures import token_blocks
from fixtures.draft_batches import DraftBatch
from fixtures.token_blocks import HOST_BLOCK_TOKENS, MAX_HOST_BLOCKS, BlockSizes, count_pieces
from harness import checking
from harness.guards import skip_not_applicable

PIECE, SMALL_PIECE = 8192, 256


def around_pieces(most: int, piece: int = PIECE) -> st.SearchStrategy[int]:
    """Draw lengths around whole pieces, most of them long enough to be shared."""
    whole = st.integers(0, most // piece)
    return st.builds(lambda whole, more: max(1, whole * piece + more), whole, st.integers(-1, 1))


LENGTHS = around_pieces(200_000)
CONTEXTS = st.sampled_from([70_000, 140_000, 33_000, 20_000, 1_700])


@pytest.fixture(autouse=True, scope="module")
def sizes() -> BlockSizes:
    module = token_blocks.get_kernel_module()
    if module is None:
        skip_not_applicable("one program writes a branch's whole row")
    return BlockSizes(module)


@st.composite
def long_batches(
    draw: st.DrawFn, contexts: st.SearchStrategy[int] = CONTEXTS, piece: int = PIECE
) -> DraftBatch:
    """Draw batches of long rows, alone or with a short one, for short and for long contexts."""
    steps, context = draw(st.integers(2, 3)), draw(contexts)
    room = context - steps
    around = around_pieces(context, piece)
    length = st.one_of(around.map(lambda length: min(length, room)), st.integers(1, room))
    lengths = tuple(draw(st.lists(length, min_size=1, max_size=2)))
    window = draw(st.one_of(st.none(), st.tuples(around, st.integers(0, 4))))
    topk, page = draw(st.integers(1, 2)), draw(st.sampled_from([1, 16]))
    return DraftBatch(lengths, topk, steps, page, context, len(lengths), window=window)


WINDOW_OF_PIECES = DraftBatch(
    lengths=(500, 3), topk=1, steps=2, page=1, context=600, slots=2, window=(300, 4)
)


@given(
    name=st.sampled_from(["flashinfer", "aiter"]),
    batch=long_batches(st.sampled_from([400, 700]), SMALL_PIECE),
)
@example(name="flashinfer", batch=WINDOW_OF_PIECES)
def test_many_programs_write_the_same_row(sizes: BlockSizes, name: str, batch: DraftBatch) -> None:
    if name not in adapter.WINDOW_BACKENDS:
        batch = dataclasses.replace(batch, window=None)
    with checking.checked() as check, sizes.share_short_rows(SMALL_PIECE):
        draft = adapter.make_backend(name, batch, check.device)
        adapter.assert_rows_match(
            adapter.fill_rows(check, draft, batch, adapter.FillMode.REPLAY), batch
        )


JUST_OVER_A_PIECE = DraftBatch(
    lengths=(20_000,), topk=1, steps=2, page=1, context=40_000, slots=1, window=(8190, 4)
)
HUNDREDS_OF_BLOCKS = DraftBatch(lengths=(30_000,), topk=1, steps=2, page=1, context=32_000, slots=1)

PART_OF_A_BLOCK = DraftBatch(lengths=(700,), topk=1, steps=2, page=1, context=1_700, slots=1)


@given(batch=long_batches(), on_host=st.booleans())
@example(batch=PART_OF_A_BLOCK, on_host=True)
@example(batch=JUST_OVER_A_PIECE, on_host=False)
@example(batch=HUNDREDS_OF_BLOCKS, on_host=True)
def test_a_long_row_is_shared_by_enough_programs_and_no_more(
    sizes: BlockSizes, batch: DraftBatch, on_host: bool
) -> None:
    plan = adapter.override_host_plan() if on_host else contextlib.nullcontext()
    with checking.checked() as check, plan:
        check.run_only(adapter.KERNEL, [])
        draft = adapter.make_backend("flashinfer", batch, check.device)
        adapter.run_backend(
            draft, adapter.make_forward_batch(draft, batch, check.device), adapter.FillMode.EAGER
        )
        grid = adapter.get_last_launch(check).grid
    blocks, rest = divmod(grid[0], batch.steps)
    assert rest == 0
    base, length = batch.steps * batch.branches, token_blocks.get_longest_row(batch)
    most = 1
    if batch.width >= sizes.min_context:
        assert sizes.is_enough(blocks, length, base)
        most = sizes.compute_max_blocks(min(sum(batch.lengths), batch.width), base)
    if on_host and batch.window is None:
        wanted = min(MAX_HOST_BLOCKS, count_pieces(length, HOST_BLOCK_TOKENS))
        assert blocks >= wanted
        most = max(most, wanted)
    assert 1 <= blocks <= most


@given(
    width=LENGTHS,
    total=st.one_of(LENGTHS, LENGTHS, st.none()),
    requests=st.sampled_from([1, 2, 7, 600, 0]),
    base=st.one_of(st.none(), st.integers(1, 40), st.integers(1, 700)),
    cap=st.one_of(st.none(), LENGTHS),
    context=st.one_of(st.none(), CONTEXTS),
)
@example(width=40_000, total=None, requests=0, base=None, cap=None, context=None)
@example(width=40_000, total=200_000, requests=5, base=None, cap=None, context=None)
@example(width=140_000, total=140_000, requests=1, base=None, cap=9_000, context=None)
def test_a_row_is_cut_into_as_many_pieces_as_it_can_have(
    sizes: BlockSizes,
    width: int,
    total: int | None,
    requests: int,
    base: int | None,
    cap: int | None,
    context: int | None,
) -> None:
    blocks = sizes.module.spec_kv_index_token_blocks(width, total, requests, base, cap, context)
    if not requests or (width if context is None else context) < sizes.min_context:
        assert blocks == 1
        return
    # Without the sum only the table's width bounds the rows.
    bounds = [width] if total is None else [width, total] + ([] if cap is None else [cap])
    programs = requests if base is None else base
    assert blocks <= sizes.compute_max_blocks(min(bounds), programs)
    assert sizes.is_enough(blocks, min(bounds), programs)
