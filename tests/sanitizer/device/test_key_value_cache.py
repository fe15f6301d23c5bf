"""The stand-in that stores keys and values: its arguments from release to release."""

from __future__ import annotations

import pytest
import torch

from harness.sanitizer.plugins.for_sglang.operators.kv_cache import store_cache


@pytest.mark.parametrize("numbers", [(2,), (2, 9), (4, 9, -1), (9, -1)])
def test_rows_are_stored_whatever_the_releases_arguments(numbers: tuple[int, ...]) -> None:
    k, v = torch.ones(2, 3), torch.full((2, 3), 2.0)
    k_cache, v_cache = torch.zeros(9, 3), torch.zeros(9, 3)
    store_cache(k, v, k_cache, v_cache, torch.tensor([7, 8]), *numbers)
    assert k_cache[:, 0].tolist() == [0, 0, 0, 0, 0, 0, 0, 1, 1]
    assert v_cache[:, 0].tolist() == [0, 0, 0, 0, 0, 0, 0, 2, 2]


def test_the_reserved_slot_is_not_written_and_one_outside_raises() -> None:
    rows, cache = torch.ones(2, 3), torch.zeros(9, 3)
    store_cache(rows, rows, cache, cache, torch.tensor([0, 8]), 9, 0)
    assert cache[:, 0].tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 1]
    with pytest.raises(IndexError, match="slot 8 of 8 slots"):
        store_cache(rows, rows, cache, cache, torch.tensor([0, 8]), 1, 8)
