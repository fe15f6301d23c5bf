"""Random operands of each type of PTX, and bfloat16 as bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

RANDOM = np.random.default_rng(7)
N = 64
TYPES = {
    "u16": np.uint16, "s16": np.int16, "u32": np.uint32, "s32": np.int32, "b32": np.uint32,
    "u64": np.uint64, "s64": np.int64, "b64": np.uint64, "f32": np.float32, "f64": np.float64,
    "f16": np.float16, "bf16": np.uint16, "f16x2": np.uint32, "bf16x2": np.uint32,
    "pred": np.uint8, "u8": np.uint8, "s8": np.int8, "b16": np.uint16,
}  # fmt: skip


def draw_operand(kind: str) -> Any:
    dtype = TYPES[kind]
    if kind == "pred":
        return RANDOM.integers(0, 2, N, dtype=np.uint8)
    if kind == "bf16":
        return to_bf16(draw_operand("f32"))
    if kind in ("f16x2", "bf16x2"):
        half = kind[:-2]
        low, high = (draw_operand(half).view(np.uint16).astype(np.uint32) for _ in range(2))
        return low | high << 16
    if np.issubdtype(dtype, np.floating):
        values = RANDOM.normal(size=N) * 2.0 ** RANDOM.integers(-8, 9, N)
        values[:6] = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf]
        return values.astype(dtype)
    limits = np.iinfo(dtype)
    values = RANDOM.integers(limits.min, limits.max, N, dtype=dtype, endpoint=True)
    values[:5] = [0, 1, limits.max, limits.min, limits.max - 1]
    values[5:20] = values[5:20] % np.array(40, dtype=dtype)
    return RANDOM.permutation(values)


def to_bf16(values: Any) -> Any:
    return (
        torch.from_numpy(values.astype(np.float32))
        .bfloat16()
        .view(torch.int16)
        .numpy()
        .view(np.uint16)
    )


def from_bf16(bits: Any) -> Any:
    return (bits.astype(np.uint32) << 16).view(np.float32)
