"""The stand-ins of the causal convolution, against torch's convolution over the whole sequence."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.device.operators.causal_conv1d import causal_conv1d_fwd, causal_conv1d_update

PAD = -1


def convolve_whole(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return SiLU of torch's convolution of `[dim, tokens]`, with zeros before the first token."""
    padded = torch.nn.functional.pad(x.double().unsqueeze(0), (weight.shape[1] - 1, 0))
    kernel = weight.double().unsqueeze(1)
    result = torch.nn.functional.conv1d(padded, kernel, bias.double(), groups=x.shape[0])[0]
    return torch.nn.functional.silu(result)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    chunk=st.integers(1, 9),
    width=st.integers(2, 4),
    decoded=st.integers(0, 3),
    seed=st.integers(0, 2**16),
)
def test_chunks_and_decoded_tokens_give_what_the_whole_sequence_gives(
    lengths: list[int], chunk: int, width: int, decoded: int, seed: int
) -> None:
    torch.manual_seed(seed)
    dim, count = 3, len(lengths)
    weight, bias = torch.randn(dim, width), torch.randn(dim)
    sequences = [torch.randn(dim, length + decoded) for length in lengths]
    states = torch.full((count + 1, dim, width - 1), float("nan"))
    slots = torch.tensor([*range(1, count + 1), PAD], dtype=torch.int32)
    parts: list[list[torch.Tensor]] = [[] for _ in lengths]
    cuts = [(0, chunk), (chunk, 9)]
    for goes_on, (start, end) in enumerate(cuts):
        pieces = [
            one[:, start : min(end, length)] for one, length in zip(sequences, lengths, strict=True)
        ]
        used = [number for number, piece in enumerate(pieces) if piece.shape[1]]
        if not used:
            continue
        x = torch.cat([pieces[number] for number in used] + [torch.zeros(dim, 2)], dim=1)
        sizes = [pieces[number].shape[1] for number in used] + [2]
        ends = torch.tensor([0, *sizes]).cumsum(0).int()
        indices = slots[[*used, count]]
        flags = torch.full((len(indices),), bool(goes_on))
        causal_conv1d_fwd(x, weight, bias, states, ends, indices, flags, True, PAD)
        for number, piece in zip(used, x.split(sizes, dim=1), strict=False):
            parts[number].append(piece)
    for step in range(decoded):
        x = torch.stack(
            [one[:, length + step] for one, length in zip(sequences, lengths, strict=True)]
            + [torch.zeros(dim)]
        )
        causal_conv1d_update(x, states, weight, bias, True, None, slots, PAD)
        assert not x[-1].any(), "a padded request was written"
        for number in range(count):
            parts[number].append(x[number].unsqueeze(1))
    for sequence, part in zip(sequences, parts, strict=True):
        expected = convolve_whole(sequence, weight, bias)
        torch.testing.assert_close(torch.cat(part, dim=1).double(), expected, rtol=1e-5, atol=1e-5)
    assert states[0].isnan().all(), "the slot of no request was written"
