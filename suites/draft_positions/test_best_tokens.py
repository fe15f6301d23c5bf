"""The kernel that takes the best token of each branch and advances its position.

THE INVARIANTS IN PLAIN WORDS

1. The chosen token is an argmax of its row's logits, whatever the vocabulary's size, the row's
   stride and the dtype. A NaN is never chosen. If all are NaN, the token is still one of the
   vocabulary.
2. Its probability is 1, its id has 64 bits, and it is written to this step's column of the draft's
   tokens. Other steps' columns stay unchanged.
3. Every position advances by one.
4. A program reads its own piece of its own row; the reducing program reads its row's pieces.
5. Rows may lie further into memory than 32 bits can count.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from fixtures import best_tokens as adapter
from fixtures.best_tokens import LogitRows
from harness import checking
from harness.guards import skip_not_applicable


@pytest.fixture(autouse=True, scope="module")
def _kernels_are_here() -> None:
    if not adapter.HAS_KERNELS:
        skip_not_applicable("plain torch takes the best tokens")


THREE_PIECES = LogitRows((16389, 2, 8192), ("usual",) * 3, 16390, row_padding=1, steps=3, column=1)


@given(rows=adapter.rows())
@example(rows=THREE_PIECES)
def test_each_row_gives_its_best_token(rows: LogitRows) -> None:
    with checking.checked() as check:
        adapter.add_access_rules(check)
        logits = rows.make_logits(check.device)
        taken = adapter.take_best_tokens(logits, rows.steps, rows.column)
    assert taken.tokens.dtype == torch.int64
    assert taken.shares.dtype == torch.float32
    assert taken.shares.tolist() == [[1.0]] * len(rows)
    assert taken.positions.tolist() == [101 + 10 * row for row in range(len(rows))]
    assert taken.tokens.shape == (len(rows), 1)
    tokens = taken.tokens.flatten().tolist()
    for row, token in enumerate(tokens):
        assert 0 <= token < rows.vocabulary
        assert not rows.has_best_token(row) or token == rows.best[row]
    if taken.drafted is not None:
        expected = [[adapter.UNWRITTEN] * rows.steps for _ in tokens]
        for row, token in enumerate(tokens):
            expected[row][rows.column] = token
        assert taken.drafted.tolist() == expected


@given(best=st.lists(st.integers(0, 8), min_size=3, max_size=3), rows_apart=st.integers(0, 9))
def test_rows_may_lie_beyond_32_bits(best: list[int], rows_apart: int) -> None:
    with checking.checked() as check:
        logits = adapter.make_far_rows(check.device, 2**30 + rows_apart, tuple(best), 9)
        taken = adapter.take_best_tokens(logits, 3, 2)
    assert taken.tokens.flatten().tolist() == best
