"""Mamba's causal convolution over time, one filter a channel, with a state of the last inputs."""

from __future__ import annotations

import itertools

import torch

from harness.sanitizer.device.stand_ins import stand_in

_SOURCE = "sglang/kernels/ops/mamba/causal_conv1d.py, sglang/kernels/jit/csrc/mamba"


def convolve_channels(
    inputs: torch.Tensor,
    state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    silu_activation: bool,
) -> torch.Tensor:
    """Return the outputs of [channels, time], and leave the last inputs in `state`.

    Example: a width of 4 and a state [a b c] give the input d the output w0 a + w1 b + w2 c + w3 d,
    and the state [b c d].
    """
    width, length = weight.shape[-1], inputs.shape[-1]
    window = torch.cat([state, inputs.to(state.dtype)], dim=-1)
    state.copy_(window[:, -state.shape[-1] :])
    window = window[:, -(length + width - 1) :].float()
    output = sum(window[:, i : i + length] * weight[:, i : i + 1].float() for i in range(width))
    assert isinstance(output, torch.Tensor)
    if bias is not None:
        output = output + bias.float().unsqueeze(-1)
    return torch.nn.functional.silu(output) if silu_activation else output


@stand_in("jit:causal_conv1d.causal_conv1d_fwd", "sgl_kernel.causal_conv1d_fwd", source=_SOURCE)
def causal_conv1d_fwd(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    conv_states: torch.Tensor | None,
    query_start_loc: torch.Tensor | None,
    cache_indices: torch.Tensor | None,
    has_initial_state: torch.Tensor | None,
    silu_activation: bool,
    pad_slot_id: int,
) -> None:
    """Convolve each sequence of `x` ([channels, tokens], or a batch of them) in place."""
    if query_start_loc is not None:
        ends = query_start_loc.tolist()
        sequences = [x[:, a:b] for a, b in itertools.pairwise(ends)]
    else:
        sequences = list(x)
    slots = list(range(len(sequences))) if cache_indices is None else cache_indices.tolist()
    for number, (sequence, slot) in enumerate(zip(sequences, slots, strict=True)):
        if slot == pad_slot_id or not sequence.shape[-1]:
            continue
        state = sequence.new_zeros(len(sequence), weight.shape[-1] - 1)
        if conv_states is not None:
            state = conv_states[slot]
            if has_initial_state is None or not bool(has_initial_state[number]):
                state.zero_()
        sequence.copy_(convolve_channels(sequence, state, weight, bias, silu_activation))


@stand_in(
    "jit:causal_conv1d.causal_conv1d_update", "sgl_kernel.causal_conv1d_update", source=_SOURCE
)
def causal_conv1d_update(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    silu_activation: bool,
    cache_seqlens: torch.Tensor | None,
    conv_state_indices: torch.Tensor | None,
    pad_slot_id: int,
) -> None:
    """Convolve the new inputs of each request ([batch, channels, time]) in place.

    A binary of `sgl_kernel`, which earlier releases call, takes the same arguments.
    """
    if cache_seqlens is not None:
        raise NotImplementedError("causal_conv1d_update with a circular state has no stand-in")
    slots = range(len(x)) if conv_state_indices is None else conv_state_indices.tolist()
    for sequence, slot in zip(x, slots, strict=True):
        if slot != pad_slot_id:
            outputs = convolve_channels(sequence, conv_state[slot], weight, bias, silu_activation)
            sequence.copy_(outputs)
