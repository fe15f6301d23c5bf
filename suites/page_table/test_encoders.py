"""The slots that a captured graph reads for models with an encoder, whose tokens precede the
text's.

THE INVARIANTS IN PLAIN WORDS

1. A request's own text is read from the end of its encoder's tokens, and these are read by a table
   of their own. A request without an encoder's tokens reads its text alone.
2. The ends of queries and keys are the running sums of the rows.
3. Nothing is written past the rows of the batch: those belong to a larger graph.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from fixtures import flash_attention as flash
from fixtures.draft_batches import DraftBatch, pad_batch
from harness import checking
from harness.core import device
from harness.guards import skip_not_applicable

SPARE = 4
"""Columns that a row of the pool has beyond the longest context, on a server without drafts."""


@pytest.fixture(autouse=True)
def encoders(request: pytest.FixtureRequest) -> None:
    if not flash.HAS_SINGLE_ENTRY:
        skip_not_applicable("a graph knows of the first request's encoder alone")
    fails = request.node.get_closest_marker("xfail") and not request.config.option.runxfail
    if fails and device.get_device() != "cpu":
        skip_not_applicable(
            "a GPU would lose the process to an index past the end: --runxfail asks for it"
        )


@st.composite
def encoder_batches(
    draw: st.DrawFn, images: st.SearchStrategy[int]
) -> tuple[DraftBatch, tuple[int, ...]]:
    """Draw a batch, and the number of encoder tokens of each request's image."""
    context = draw(st.sampled_from([16, 40]))
    count = draw(st.integers(1, 3))
    before = [min(context - 1, draw(images)) for _ in range(count)]
    lengths = tuple(draw(st.integers(1, context - image)) for image in before)
    batch = DraftBatch(
        lengths=lengths,
        topk=1,
        steps=1,
        page=1,
        context=context,
        slots=count + draw(st.integers(0, 1)),
        first_row=draw(st.sampled_from([1, 5])),
        columns=context + SPARE,
    )
    padding = draw(st.integers(0, 2))
    return pad_batch(batch, padding), (*before, *[0] * padding)


def reads_text_and_image(batch: DraftBatch, images: tuple[int, ...]) -> None:
    with checking.checked() as check:
        one = flash.make_backend(batch, check.device, is_encoder_decoder=True)
        forward = flash.make_forward_batch(one, batch, ForwardMode.DECODE)
        forward.encoder_lens = torch.zeros(len(images), dtype=torch.int32, device=check.device)
        metadata = flash.capture_graph(one, forward, batch.slots, 1)
        canaries = flash.fill_stale(metadata, "encoder_page_table", "encoder_lens_int32")
        metadata.encoder_cu_seqlens_k[1:] = flash.STALE_VALUE
        forward.encoder_lens = torch.tensor(images, dtype=torch.int32, device=check.device)
        flash.replay_graph(one, forward)
        rows = list(zip(batch.row_of, images, batch.lengths, strict=True))
        assert flash.list_read_slots(metadata, 1) == [
            [batch.get_slot(row, image + column) for column in range(length)]
            for row, image, length in rows
        ]
        named = metadata.encoder_page_table.tolist()
        assert metadata.encoder_lens_int32.tolist() == list(images)
        assert [row[:image] for row, image in zip(named, images, strict=True)] == [
            [batch.get_slot(row, column) for column in range(image)] for row, image, _ in rows
        ]
        assert metadata.encoder_cu_seqlens_k.tolist() == [*itertools.accumulate(images, initial=0)]
        flash.assert_counts_add_up(metadata, [1] * len(images))
        canaries.assert_untouched()


@given(case=encoder_batches(st.integers(0, SPARE)))
def test_text_is_read_behind_the_image(case: tuple[DraftBatch, tuple[int, ...]]) -> None:
    reads_text_and_image(*case)


@pytest.mark.xfail(
    strict=True,
    raises=IndexError,
    reason="a graph reads a whole context behind the image: past the row, up to 0.5.23",
)
@given(case=encoder_batches(st.integers(SPARE + 1, 39)))
def test_text_is_read_behind_any_image(case: tuple[DraftBatch, tuple[int, ...]]) -> None:
    reads_text_and_image(*case)
