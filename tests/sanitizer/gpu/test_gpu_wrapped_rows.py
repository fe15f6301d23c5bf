"""Rows that wrap around at a remainder, checked on a GPU: the same result, and the lane outside."""

from __future__ import annotations

import pytest
import torch
from test_wrapped_rows import product_of_columns

from harness import checking
from harness.checking import OutOfBounds

pytestmark = pytest.mark.needs_cuda


@pytest.mark.parametrize("wide", [96, 128, 136])
def test_a_product_with_wrapped_columns_is_the_same_under_check(wide: int) -> None:
    left = torch.randn(64, 128, dtype=torch.float16, device="cuda")
    right = torch.randn(128, wide, dtype=torch.float16, device="cuda")
    plain, checked = (torch.zeros(64, 64, dtype=torch.float16, device="cuda") for _ in range(2))
    product_of_columns[(1,)](left, right, plain, wide, 128, BLOCK=64)
    with checking.checked("cuda"):
        product_of_columns[(1,)](left, right, checked, wide, 128, BLOCK=64)
    assert torch.equal(plain, checked)
    words = r"product_of_columns read .* past the end of right"
    with pytest.raises(OutOfBounds, match=words), checking.checked("cuda"):
        product_of_columns[(1,)](left, right[:127], checked, wide, 128, BLOCK=64)
