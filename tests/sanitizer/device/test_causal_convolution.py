"""The stand-ins of Mamba's convolution: chunks and steps give what the whole sequence gives."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.sanitizer.plugins.for_sglang.operators.causal_conv1d import (
    causal_conv1d_fwd,
    causal_conv1d_update,
)

PAD = -1


@settings(deadline=None, max_examples=40)
@given(
    st.integers(2, 4), st.integers(1, 9), st.integers(0, 6), st.booleans(), st.integers(0, 2**31)
)
def test_a_prompt_in_chunks_and_steps_is_one_convolution(
    width: int, prompt: int, steps: int, silu: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    x = torch.randn(3, prompt + steps)
    weight, bias = torch.randn(3, width), torch.randn(3)
    whole = torch.nn.functional.conv1d(
        torch.nn.functional.pad(x, (width - 1, 0))[None], weight[:, None], bias, groups=3
    )[0]
    whole = torch.nn.functional.silu(whole) if silu else whole
    states = torch.randn(5, 3, width - 1)
    before, slot = states.clone(), 2
    got, cut = x.clone(), prompt // 2
    for start, end in ((0, cut), (cut, prompt)):
        chunk = got[:, start:end].clone()
        causal_conv1d_fwd(
            chunk,
            weight,
            bias,
            states,
            torch.tensor([0, end - start], dtype=torch.int32),
            torch.tensor([slot], dtype=torch.int32),
            torch.tensor([start > 0]),
            silu,
            PAD,
        )
        got[:, start:end] = chunk
    for step in range(prompt, prompt + steps):
        new = torch.stack([torch.ones(3, 1), got[:, step : step + 1]])
        slots = torch.tensor([PAD, slot], dtype=torch.int32)
        causal_conv1d_update(new, states, weight, bias, silu, None, slots, PAD)
        assert bool((new[0] == 1).all())  # a padded request is left as it is
        got[:, step : step + 1] = new[1]
    torch.testing.assert_close(got, whole, rtol=1e-4, atol=1e-4)
    others = [number for number in range(5) if number != slot]
    assert torch.equal(states[others], before[others])
