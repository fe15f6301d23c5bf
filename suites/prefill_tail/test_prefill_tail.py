"""The draft's inputs at the end of a chunk of a prompt, in EAGLE.

The draft reads a prompt one token ahead of the target. In plain words:

- At each position of a prompt the draft reads the token of the next position; at the last one it
  reads the token that the target has just sampled. The end of an earlier chunk is not the end of
  the prompt: there the draft reads the prompt's next token.
- So chunks change nothing: over all of them the draft reads the same as for the whole prompt.
- Neither do the other prompts of a batch.

The draft model is a stand-in that records its inputs.
"""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given

from fixtures import prefill_tail as adapter
from harness import checking


@pytest.mark.guards("26329")
@given(prefill=adapter.prefills())
def test_the_draft_reads_one_token_ahead(prefill: adapter.ChunkedPrefill) -> None:
    with checking.checked() as check:
        read = adapter.run_prefill(prefill, check.device)
    assert read == [prefill.list_expected_reads(number) for number in range(len(read))]


@pytest.mark.guards("26329")
@given(prefill=adapter.prefills())
def test_chunks_change_nothing_that_is_read(prefill: adapter.ChunkedPrefill) -> None:
    last = prefill.chunks[-1]
    whole = dataclasses.replace(
        prefill, chunks=(dataclasses.replace(last, size=len(prefill.prompt)),)
    )
    with checking.checked() as check:
        in_chunks = adapter.run_prefill(prefill, check.device)
        at_once = adapter.run_prefill(whole, check.device)
    read = [
        token
        for chunk, batch in zip(prefill.chunks, in_chunks, strict=True)
        for token in batch[len(chunk.before)]
    ]
    assert read == at_once[0][len(last.before)]


@given(prefill=adapter.prefills())
def test_other_prompts_change_nothing_that_is_read(prefill: adapter.ChunkedPrefill) -> None:
    alone = dataclasses.replace(
        prefill, chunks=tuple(adapter.PrefillChunk(chunk.size) for chunk in prefill.chunks)
    )
    with checking.checked() as check:
        together, by_itself = (adapter.run_prefill(one, check.device) for one in (prefill, alone))
    for chunk, batch, own in zip(prefill.chunks, together, by_itself, strict=True):
        assert [batch[len(chunk.before)]] == own


# A known bug of every release so far. Strict: a release that fixes it fails here.


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="the multi-layer worker has 26329")
@given(prefill=adapter.prefills(workers=("multi-layer",)))
def test_the_multi_layer_draft_reads_one_token_ahead(prefill: adapter.ChunkedPrefill) -> None:
    with checking.checked() as check:
        read = adapter.run_prefill(prefill, check.device)
    assert read == [prefill.list_expected_reads(number) for number in range(len(read))]


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="upstream pull request 28254, open")
@given(prefill=adapter.prefills(answered=True))
def test_an_answer_from_before_a_retraction_is_read_like_a_prompt(
    prefill: adapter.ChunkedPrefill,
) -> None:
    with checking.checked() as check:
        read = adapter.run_prefill(prefill, check.device)
    assert read == [prefill.list_expected_reads(number) for number in range(len(read))]
