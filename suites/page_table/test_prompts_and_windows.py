"""Models whose decode reads the whole prompt and a window of the generated tokens.

THE INVARIANTS IN PLAIN WORDS

1. A request reads its prompt, and of the tokens after it the most recent ones, up to the window's
   size. They form one row, in order, without repetitions and without tokens of other requests.
2. A prompt's length is stored for the request's pool row, until another request has the row.
3. A replayed graph gives the same table as an eager forward.
4. A program reads those slots of its own request's row alone, and fills its own row to its length.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from fixtures import flash_attention as flash
from fixtures.draft_batches import DraftBatch, pad_batch
from harness import checking
from harness.guards import skip_not_applicable

KERNEL = "_build_pa_page_table_kernel"


@pytest.fixture(autouse=True)
def windows_that_spare_prompts() -> None:
    if not hasattr(flash.flashattention_backend, "_build_pa_page_table"):
        skip_not_applicable("no model's window spares its prompt")


@dataclasses.dataclass(frozen=True)
class ConversationBatch:
    """A batch, the length of each prompt (0: prefilled elsewhere), and the window."""

    batch: DraftBatch
    prompts: tuple[int, ...]
    window: int

    def columns(self, request: int) -> list[int]:
        length = self.batch.lengths[request]
        prompt = self.prompts[request] if request < len(self.prompts) else 0
        recent = range(max(prompt, length - self.window), length)
        return [*range(prompt), *recent]

    @property
    def rows(self) -> list[list[int]]:
        batch = self.batch
        return [
            [batch.get_slot(row, column) for column in self.columns(request)]
            for request, row in enumerate(batch.row_of)
        ]


@st.composite
def talks(draw: st.DrawFn, padding: bool) -> ConversationBatch:
    """Draw rows below, at and beyond the 256 slots that a program copies per iteration."""
    context = draw(st.sampled_from([24, 300, 700]))
    window = draw(st.sampled_from([1, 4, 64, 255]))
    prompt = st.one_of(st.integers(1, context - 1), st.integers(1, min(9, context - 1)))
    if draw(st.integers(0, 4)) == 4:
        prompt = st.just(0)
    prompts = tuple(draw(st.lists(prompt, min_size=1, max_size=3)))
    answer_lengths = st.one_of(
        st.integers(1, context), st.sampled_from([1, window, window + 1, 2 * window])
    )
    lengths = tuple(min(context, prompt + draw(answer_lengths)) for prompt in prompts)
    batch = DraftBatch(
        lengths=lengths,
        topk=1,
        steps=1,
        page=1,
        context=context,
        slots=len(lengths) + draw(st.integers(0, 1)),
        first_row=draw(st.sampled_from([1, 5])),
    )
    return ConversationBatch(
        pad_batch(batch, draw(st.integers(0, 2)) if padding else 0), prompts, window
    )


def make_backend(talk: ConversationBatch, device: str) -> Any:
    rows = max(talk.batch.row_of) + 2
    one = flash.make_backend(
        talk.batch,
        device,
        has_swa=True,
        is_prefill_aware_swa=True,
        sliding_window_size=talk.window,
        _pa_swa_prefill_lens=torch.zeros(rows, dtype=torch.int32, device=device),
        _pa_swa_max_prefill_len=0,
    )
    if any(talk.prompts):
        read_prompts(one, talk)
    return one


def read_prompts(one: Any, talk: ConversationBatch) -> None:
    """Leave the state of the prompts' own forward; some of the rows had longer prompts before."""
    count = len(talk.prompts)
    batch = dataclasses.replace(talk.batch, lengths=talk.prompts, padding=0)
    rows = talk.batch.row_of[:count]
    forward = flash.make_forward_batch(one, batch, ForwardMode.EXTEND)
    forward.req_pool_indices = torch.tensor(rows, device=one.device)
    forward.extend_seq_lens = forward.seq_lens
    forward.extend_seq_lens_cpu = list(talk.prompts)
    forward.extend_prefix_lens_cpu = [0] * count
    one.init_forward_metadata(forward)


def allow_accesses(check: Any, talk: ConversationBatch) -> None:
    def own_row(launch: Any, request: int, *_: int) -> Any:
        return request, slice(0, len(talk.columns(request)))

    def own_slots(launch: Any, request: int, *_: int) -> Any:
        return talk.batch.row_of[request], talk.columns(request)

    def own_count(launch: Any, request: int, *_: int) -> Any:
        return request

    nothing = {"write": lambda *program: None}
    check.allow_argument(KERNEL, "req_to_token_ptr", read=own_slots, **nothing)
    check.allow_argument(KERNEL, "dst_page_table_ptr", write=own_row, read=lambda *program: None)
    check.allow_argument(KERNEL, "kv_lens_ptr", write=own_count, read=lambda *program: None)


NO_PROMPTS = ConversationBatch(
    DraftBatch((9, 5), topk=1, steps=1, page=1, context=24, slots=2), (0, 0), window=4
)


@given(talk=talks(padding=True))
@example(talk=NO_PROMPTS)
def test_a_graph_reads_the_prompt_and_the_window(talk: ConversationBatch) -> None:
    with checking.checked() as check:
        one = make_backend(talk, check.device)
        forward = flash.make_forward_batch(one, talk.batch, ForwardMode.DECODE)
        metadata = flash.capture_graph(one, forward, talk.batch.slots, 1)
        canaries = flash.fill_stale(metadata)
        allow_accesses(check, talk)
        flash.replay_graph(one, forward)
        assert flash.list_read_slots(metadata, 1) == talk.rows
        assert metadata.pa_swa_page_table.data_ptr() == metadata.page_table.data_ptr()
        canaries.assert_untouched()


@given(talk=talks(padding=False), known=st.booleans())
def test_the_same_without_a_graph(talk: ConversationBatch, known: bool) -> None:
    with checking.checked() as check:
        one = make_backend(talk, check.device)
        forward = flash.make_forward_batch(one, talk.batch, ForwardMode.DECODE)
        if not known:
            forward.seq_lens_cpu = None
        allow_accesses(check, talk)
        one.init_forward_metadata(forward)
        metadata = one.forward_metadata
        counted = metadata.pa_swa_cache_seqlens.tolist()
        assert counted == [len(row) for row in talk.rows]
        named = metadata.pa_swa_page_table.tolist()
        assert [row[: len(mine)] for row, mine in zip(named, talk.rows, strict=True)] == talk.rows
