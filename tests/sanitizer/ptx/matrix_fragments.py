"""Which elements of a matrix each lane holds, by the formulas of the PTX ISA, and kernels on them.

A formula gives row and column of the i-th element of a lane; its group is lane / 4, its thread in
the group lane % 4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from operands import from_bf16, to_bf16
from ptx_kernels import HEAD, pack_parameters, run_text

from harness.sanitizer.ptx.launch import ExecutorChecks

Place = Callable[[int, int, int], tuple[int, int]]  # group, thread, i

_UPPER: dict[tuple[int, int], Place] = {
    (16, 16): lambda g, t, i: (
        g if i < 2 or 4 <= i < 6 else g + 8,
        t * 2 + (i & 1) + (0 if i < 4 else 8),
    ),
    (16, 8): lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)),
    (32, 4): lambda g, t, i: (g if i == 0 else g + 8, t),
    (32, 8): lambda g, t, i: (g if i in (0, 2) else g + 8, t if i < 2 else t + 4),
    (8, 16): lambda g, t, i: (g if i < 4 else g + 8, t * 4 + (i & 3)),
    (8, 32): lambda g, t, i: (
        g if i < 4 or 8 <= i < 12 else g + 8,
        t * 4 + (i & 3) + (0 if i < 8 else 16),
    ),
}
_LOWER: dict[tuple[int, int], Place] = {
    (16, 16): lambda g, t, i: (t * 2 + (i & 1) + (0 if i < 2 else 8), g),
    (16, 8): lambda g, t, i: (t * 2 + i, g),
    (32, 4): lambda g, t, i: (t, g),
    (32, 8): lambda g, t, i: (t if i == 0 else t + 4, g),
    (8, 16): lambda g, t, i: (t * 4 + i, g),
    (8, 32): lambda g, t, i: (t * 4 + (i & 3) + (0 if i < 4 else 16), g),
}
_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8}


def _place_sum(g: int, t: int, i: int) -> tuple[int, int]:
    return (g if i < 2 else g + 8), t * 2 + (i & 1)


@dataclass(frozen=True)
class Form:
    """A form of `mma.sync`: its depth and the types of A, B and D."""

    depth: int
    left: str
    right: str
    sum: str
    words: str = ""

    @property
    def name(self) -> str:
        types = f"{self.sum}.{self.left}.{self.right}.{self.sum}"
        return f"mma.sync.aligned.m16n8k{self.depth}.row.col{self.words}.{types}"


FORMS = [
    *(Form(depth, kind, kind, "f32") for depth in (8, 16) for kind in ("f16", "bf16")),
    *(Form(depth, "f16", "f16", "f16") for depth in (8, 16)),
    *(Form(depth, "tf32", "tf32", "f32") for depth in (4, 8)),
    *(Form(depth, "s8", "s8", "s32") for depth in (16, 32)),
    *(Form(32, left, right, "s32") for left, right in (("u8", "u8"), ("s8", "u8"), ("u8", "s8"))),
    Form(32, "s8", "s8", "s32", ".satfinite"),
    Form(32, "e4m3", "e4m3", "f32"),
    Form(32, "e5m2", "e4m3", "f32"),
    Form(32, "e4m3", "e4m3", "f16"),
]


def encode_numbers(values: Any, kind: str) -> Any:
    """Return the bits of a matrix of numbers, as unsigned integers."""
    import torch

    if kind == "f16":
        return values.astype(np.float16).view(np.uint16)
    if kind == "bf16":
        return to_bf16(values)
    if kind in ("tf32", "f32"):
        return values.astype(np.float32).view(np.uint32)
    if kind in ("s8", "u8", "s32"):
        return values.astype(np.int64).astype(np.uint32 if kind == "s32" else np.uint8)
    float8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[kind]
    return torch.from_numpy(values).to(float8).view(torch.uint8).numpy()


def decode_numbers(bits: Any, kind: str) -> Any:
    """Return what bits mean, in float64 or int64."""
    import torch

    if kind == "f16":
        return bits.view(np.float16).astype(np.float64)
    if kind == "bf16":
        return from_bf16(bits).astype(np.float64)
    if kind in ("tf32", "f32"):
        kept = bits & np.uint32(0xFFFFE000) if kind == "tf32" else bits
        return kept.view(np.float32).astype(np.float64)
    if kind in ("s8", "u8", "s32"):
        return bits.view({"s8": np.int8, "u8": np.uint8, "s32": np.int32}[kind]).astype(np.int64)
    float8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[kind]
    return torch.from_numpy(bits).view(float8).double().numpy()


def split_fragments(matrix: Any, place: Place, bits: int) -> Any:
    """Return the words of each lane: word by word, 32 lanes each."""
    per_word = 32 // bits
    words = np.zeros((matrix.size // 32 // per_word, 32), np.uint32)
    for lane in range(32):
        for i in range(matrix.size // 32):
            element = int(matrix[place(lane // 4, lane % 4, i)])
            words[i // per_word, lane] |= np.uint32(element << bits * (i % per_word))
    return words


def join_fragments(words: Any, place: Place, bits: int, shape: tuple[int, int]) -> Any:
    per_word = 32 // bits
    matrix = np.zeros(shape, {8: np.uint8, 16: np.uint16, 32: np.uint32}[bits])
    for lane in range(32):
        for i in range(matrix.size // 32):
            word = int(words[i // per_word, lane])
            matrix[place(lane // 4, lane % 4, i)] = word >> bits * (i % per_word) & (1 << bits) - 1
    return matrix


def split_left(matrix: Any, form: Form) -> Any:
    return split_fragments(matrix, _UPPER[_BITS[form.left], form.depth], _BITS[form.left])


def multiply_fragments(form: Form, left: Any, right: Any, start: Any, threads: int = 32) -> Any:
    """Run the instruction on words of A, on the bits of B and C; return the bits of D."""
    bits = _BITS[form.right]
    rights = split_fragments(right, _LOWER[bits, form.depth], bits)
    sum_bits = 16 if form.sum == "f16" else 32
    starts = split_fragments(start, _place_sum, sum_bits)
    out = np.zeros_like(starts)
    inputs = np.concatenate([left, rights, starts])
    text = write_product(form.name, len(left), len(rights), len(starts))
    tensors = {"inputs": inputs, "out": out}
    run_text(text, pack_parameters(inputs, out), tensors, block=(threads, 1, 1))
    return join_fragments(out, _place_sum, sum_bits, (16, 8))


def write_product(name: str, left: int, right: int, sums: int, guard: str = "") -> str:
    """Write a kernel that loads the words of its lane, multiplies, and stores."""
    count = left + right + sums
    groups, first = [], 0
    for size in (left, right, sums):
        groups.append("{" + ", ".join(f"%x{place}" for place in range(first, first + size)) + "}")
        first += size
    results = [f"%d{place}" for place in range(sums)]
    lines = [f"ld.global.b32 %x{place}, [%a+{128 * place}];" for place in range(count)]
    lines += [f"mov.b32 {result}, 0;" for result in results]
    target = "{" + ", ".join(results) + "}"
    lines.append(f"{guard}{name} {target}, {', '.join(groups)};")
    lines += [f"st.global.b32 [%o+{128 * place}], {one};" for place, one in enumerate(results)]
    return write_kernel(lines, f".reg .b32 %x<{count}>;\n.reg .b32 %d<{sums}>;")


def write_kernel(lines: list[str], registers: str) -> str:
    """Write a kernel: %l is the lane, %a and %o the lane's word of the input and of the output."""
    start = [
        "mov.u32 %l, %tid.x;",
        "mul.wide.u32 %w, %l, 4;",
        "ld.param.u64 %a, [in];",
        "add.u64 %a, %a, %w;",
        "ld.param.u64 %o, [out];",
        "add.u64 %o, %o, %w;",
        "setp.lt.u32 %p, %l, 16;",
        "mov.u32 %s, tile;",
    ]
    return (
        f"{HEAD}.visible .entry matrices(.param .u64 in, .param .u64 out)\n{{\n"
        ".reg .b32 %l;\n.reg .b32 %s;\n.reg .b32 %r;\n.reg .b64 %w;\n.reg .b64 %a;\n"
        f".reg .b64 %o;\n.reg .pred %p;\n.shared .align 16 .b8 tile[512];\n{registers}\n"
        + "\n".join([*start, *lines])
        + "\nret;\n}\n"
    )


def run_rows(lines: list[str], values: Any, checks: ExecutorChecks | None = None) -> Any:
    """Run a kernel on words of 32 lanes; raise its report."""
    out = np.zeros_like(values)
    text = write_kernel(lines, ".reg .b32 %x<4>;\n.reg .b32 %d<4>;")
    tensors = {"values": values, "out": out}
    run_text(text, pack_parameters(values, out), tensors, block=(32, 1, 1), checks=checks)
    return out
