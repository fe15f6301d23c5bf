"""A suite with a kernel that runs for minutes, after a test that is done."""

import torch
from suite_kernels import copy_block, count_for_long


def test_that_is_quick():
    x = torch.zeros(16, device="cuda")
    copy_block[(2,)](x, torch.zeros_like(x), 16, BLOCK=8)


def test_that_takes_long():
    print("begins", flush=True)
    count_for_long[(1,)](torch.ones(2, dtype=torch.int32, device="cuda"), 2**31 - 1)
