"""What SGLang's operators compute, in torch: each formula once.

Stand-ins take them for what a CUDA binary would compute; the zoo's kernel families and the suites
hold SGLang's own kernels against them. A formula computes in the type of its argument, and in
float32 where that is narrower; the caller rounds. Example: `normalize_rows(x.double(), weight)` is
what a guard expects, and `normalize_rows(x, weight).to(x.dtype)` what a stand-in returns.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

AWQ_BITS = 4
AWQ_SHIFTS = (0, 16, 4, 20, 8, 24, 12, 28)  # where the bits of each column begin
LARGEST_EXPONENT = 127  # of a scale that is stored as its exponent, which this is added to


def widen_floats(values: torch.Tensor) -> torch.Tensor:
    """Return values in float32, or in float64 if they are."""
    return values if values.dtype == torch.float64 else values.float()


# Rows


def normalize_rows(
    values: torch.Tensor,
    weight: torch.Tensor | None = None,
    eps: float = 1e-6,
    offset: float = 0.0,
) -> torch.Tensor:
    """Divide rows by their root mean square; Gemma's weight is one less than the factor."""
    exact = widen_floats(values)
    scaled = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + eps)
    return scaled if weight is None else scaled * (weight.to(scaled.dtype) + offset)


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda values: functional.gelu(values, approximate="tanh"),
    "relu2": lambda values: functional.relu(values).square(),
}


def gate_rows(rows: torch.Tensor, activation: str = "silu") -> torch.Tensor:
    """Activate the first half of each row, and multiply it by the second."""
    gate, factor = widen_floats(rows).chunk(2, dim=-1)
    return ACTIVATIONS[activation](gate) * factor


def multiply_rows(
    rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the product with a linear layer's weight, and its bias."""
    wide = widen_floats(rows)
    product = wide @ weight.to(wide.dtype).T
    return product if bias is None else product + bias.to(wide.dtype)


# Attention


def rotate_heads(
    heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, is_neox: bool
) -> torch.Tensor:
    """Turn the first elements of each head by angles, two for each; the rest stays.

    A pair is GPT-NeoX' (an element of each half) or GPT-J's (two neighbours). The arithmetic is in
    the type of the arguments: some kernels round products and sums to it.
    """
    width = 2 * cosines.shape[-1]
    rotated, rest = heads[..., :width], heads[..., width:]
    if is_neox:
        first, second = rotated.chunk(2, dim=-1)
    else:
        first, second = rotated[..., 0::2], rotated[..., 1::2]
    parts = (first * cosines - second * sines, second * cosines + first * sines)
    turned = torch.cat(parts, -1) if is_neox else torch.stack(parts, -1).flatten(-2)
    return torch.cat([turned, rest.to(turned.dtype)], -1) if rest.numel() else turned


def find_angles(
    cos_sin: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cosines and the sines of each token, for heads of [tokens, heads, size]."""
    cosines, sines = cos_sin[positions.long()].unsqueeze(1).chunk(2, dim=-1)
    return cosines, sines


def store_rows(rows: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    """Write a row for each slot of a cache."""
    cache.flatten(1)[slots.long()] = rows.flatten(1).to(cache.dtype)


def find_written_rows(slots: torch.Tensor, reserved: int) -> torch.Tensor:
    """Find the rows whose slot is not the reserved one of padding.

    By their numbers, not by a mask: what a mask selects has a shape that only its values tell, so a
    dry run would copy the rows.
    """
    return (slots != reserved).nonzero().flatten()


# Mamba


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
    return functional.silu(output) if silu_activation else output


# Numbers of few bits


def find_largest_code(dtype: torch.dtype) -> float:
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return float(limits.max)


def find_scales(
    values: torch.Tensor,
    group: int | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
    smallest: float = 0.0,
) -> torch.Tensor:
    """Find the scale of each group of a row's elements, or of each row with `group` None.

    It is the largest absolute value, or `smallest`, over the largest code.
    """
    groups = widen_floats(values).unflatten(-1, (-1, group or values.shape[-1]))
    return groups.abs().amax(-1).clamp(min=smallest) / find_largest_code(dtype)


def find_exponents(scales: torch.Tensor) -> torch.Tensor:
    """Return the stored exponents of the next powers of two."""
    return scales.log2().ceil() + LARGEST_EXPONENT


def repeat_scales(scales: torch.Tensor, width: int) -> torch.Tensor:
    """Return a scale for each element of rows of this width."""
    return scales.repeat_interleave(width // scales.shape[-1], -1)


def round_to_codes(
    values: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype = torch.float8_e4m3fn
) -> torch.Tensor:
    """Return what values are in steps of their scales; 0 where a scale is 0.

    Kernels cut the fractions of int8 off, and round to the nearest float of 8 bits.
    """
    largest = find_largest_code(dtype)
    return (
        torch.where(scales > 0, widen_floats(values) / scales, 0.0)
        .clamp(-largest, largest)
        .to(dtype)
    )


def dequantize_awq(
    packed: torch.Tensor, scales: torch.Tensor, packed_zeros: torch.Tensor
) -> torch.Tensor:
    """Return `(code - zero) * scale`; each group of rows has its own zeros and scales."""
    shifts = torch.tensor(AWQ_SHIFTS, device=packed.device)

    def unpack(whole: torch.Tensor) -> torch.Tensor:
        codes = (whole.long().unsqueeze(-1) >> shifts) & (2**AWQ_BITS - 1)
        return codes.flatten(-2).float()

    rows = packed.shape[0] // scales.shape[0]
    zeros, factors = (
        one.repeat_interleave(rows, 0) for one in (unpack(packed_zeros), scales.float())
    )
    return (unpack(packed) - zeros) * factors
