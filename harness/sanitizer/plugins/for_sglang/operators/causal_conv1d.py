"""Mamba's causal convolution over time, one filter a channel, with a state of the last inputs."""

from __future__ import annotations

import itertools

import torch

from harness.sanitizer.device.stand_ins import stand_in
from harness.sanitizer.plugins.for_sglang.formulas import convolve_channels

_SOURCE = "sglang/kernels/ops/mamba/causal_conv1d.py, sglang/kernels/jit/csrc/mamba"


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
