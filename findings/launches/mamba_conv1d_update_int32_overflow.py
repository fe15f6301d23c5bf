"""Mamba decode with 8,192 channels and a width of 4, as Nemotron-H's and Qwen3-Next's."""

import torch
from sglang.kernels.ops.mamba.causal_conv1d import causal_conv1d_update

CHANNELS, WIDTH = 8192, 4


def make_launch(requests):
    states = torch.zeros(requests, CHANNELS, WIDTH - 1, device="cuda", dtype=torch.bfloat16)
    token = torch.randn(requests, CHANNELS, 1, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(CHANNELS, WIDTH, device="cuda", dtype=torch.bfloat16)
    slots = torch.arange(requests, device="cuda", dtype=torch.int32)
    return lambda: causal_conv1d_update(token, states, weight, None, True, None, slots, -1)


LAUNCHES = {f"decode of {requests} requests": make_launch(requests) for requests in (1, 256)}
