"""Every operation and conversion the checker answers for, on inputs that tell a wrong one.

    python -m bench.run arithmetic --record FILE     on a GPU: what compiled Triton gives
    python -m bench.run arithmetic --against FILE    with TRITON_INTERPRET=1: the checker

The bits are compared, any NaN with any NaN; operations that a GPU approximates (division, exp, log,
roots) within four units in the last place.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from bench.measuring import Result, read_record
from harness import checking

FLOATS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
EIGHTS = {"fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}
INTEGERS = {"int32": torch.int32, "int64": torch.int64}
TYPES = {**FLOATS, **EIGHTS, **INTEGERS}

EXACT = ("add", "sub", "mul", "minimum", "maximum", "less", "equal", "unequal", "where", "clamp")
NEAR = ("div", "exp", "exp2", "log", "sqrt", "rsqrt")
FOLDS = ("sum", "max")
COUNT = 256


@triton.jit
def binary(x, y, out, OP: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    b = tl.load(y + i)
    if OP == "add":
        r = a + b
    elif OP == "sub":
        r = a - b
    elif OP == "mul":
        r = a * b
    elif OP == "div":
        r = a / b
    elif OP == "minimum":
        r = tl.minimum(a, b)
    elif OP == "maximum":
        r = tl.maximum(a, b)
    elif OP == "where":
        r = tl.where(a < b, a, b)
    elif OP == "clamp":
        r = tl.clamp(a, tl.minimum(b, -b), tl.maximum(b, -b))
    elif OP == "exp":
        r = tl.exp(a)
    elif OP == "exp2":
        r = tl.exp2(a)
    elif OP == "log":
        r = tl.log(a)
    elif OP == "sqrt":
        r = tl.sqrt(a)
    elif OP == "rsqrt":
        r = tl.rsqrt(a)
    tl.store(out + i, r)


@triton.jit
def compare(x, y, out, OP: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    b = tl.load(y + i)
    if OP == "less":
        r = a < b
    elif OP == "equal":
        r = a == b
    else:
        r = a != b
    tl.store(out + i, r.to(tl.int32))


@triton.jit
def cast(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i).to(out.dtype.element_ty))


@triton.jit
def fold(x, out, OP: tl.constexpr, N: tl.constexpr):
    a = tl.load(x + tl.arange(0, N))
    if OP == "sum":
        tl.store(out, tl.sum(a, 0))
    else:
        tl.store(out, tl.max(a, 0))


@triton.jit
def dot(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    tl.store(out + at, tl.dot(tl.load(x + at), tl.load(y + at)))


def draw_numbers(kind: str, seed: int) -> torch.Tensor:
    """Return zeros, limits, ties, values outside of smaller types, and random bits."""
    generator = torch.Generator().manual_seed(seed)
    dtype = TYPES[kind]
    if kind in INTEGERS:
        ends = torch.iinfo(dtype)
        few = torch.tensor(
            [0, 1, -1, 127, -128, 255, 256, 65504, 65520, ends.max, ends.min], dtype=dtype
        )
        rest = torch.randint(
            -(2**31), 2**31 - 1, (COUNT - len(few),), generator=generator, dtype=dtype
        )
        return torch.cat([few, rest])
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[dtype.itemsize]
    if dtype.itemsize == 1:
        return torch.arange(COUNT, dtype=torch.uint8).view(dtype)
    few = [0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan"), 448.0, 464.0, 465.0]
    few += [480.0, 57344.0, 61440.0, 65504.0, 1e-9, 2**-9, 2**-10, 1.0009765625, 1.00390625, 3e38]
    near = torch.randn(COUNT // 2, generator=generator).to(dtype)
    ends = torch.iinfo(bits)
    wild = torch.randint(ends.min, ends.max, (COUNT - COUNT // 2 - len(few),), generator=generator)
    return torch.cat([torch.tensor(few).to(dtype), near, wild.to(bits).view(dtype)])


def iterate_questions(device: str) -> Iterator[tuple[str, Any]]:
    """Yield each operation by name, with a call that runs it and the tensor it writes."""
    for kind, dtype in FLOATS.items():
        x, y = (draw_numbers(kind, seed).to(device) for seed in (1, 2))
        for op in (*EXACT, *(NEAR if kind == "fp32" else ())):
            compared = op in ("less", "equal", "unequal")
            out = torch.empty(COUNT, dtype=torch.int32 if compared else dtype, device=device)
            kernel = compare if compared else binary
            yield f"{op} {kind}", lambda k=kernel, a=(x, y, out, op, COUNT): k[(1,)](*a), out
        for op in FOLDS:
            # Small whole numbers: their sum is the same in any order.
            whole = torch.randint(-8, 9, (32,), generator=torch.Generator().manual_seed(3))
            out = torch.empty(1, dtype=torch.float32 if kind == "bf16" else dtype, device=device)
            arguments = (whole.to(dtype).to(device), out, op, 32)
            yield f"{op} {kind}", lambda a=arguments: fold[(1,)](*a), out
        whole = torch.randint(-8, 9, (2, 16, 16), generator=torch.Generator().manual_seed(4))
        out = torch.empty((16, 16), device=device)
        if kind != "fp32":
            arguments = (*whole.to(dtype).to(device), out, 16)
            yield f"dot {kind}", lambda a=arguments: dot[(1,)](*a), out
    for source in TYPES:
        for target, dtype in TYPES.items():
            if source != target and not {source, target} <= {*EIGHTS, *INTEGERS}:
                out = torch.empty(COUNT, dtype=dtype, device=device)
                arguments = (draw_numbers(source, 5).to(device), out, COUNT)
                yield f"{source} to {target}", lambda a=arguments: cast[(1,)](*a), out


def compute_answers(device: str) -> dict[str, str]:
    """Return the bits of each result in hexadecimal, or the reason for a refusal."""
    answers = {}
    for name, run, out in iterate_questions(device):
        try:
            if device == "cpu":
                with checking.checked("cpu"):
                    run()
            else:
                run()
        except checking.UncheckableKernel as error:
            answers[name] = f"refused: {error}".splitlines()[0]
            continue
        except Exception as error:  # Triton's own refusal
            if device == "cpu":
                raise
            answers[name] = f"refused: {type(error).__name__}"
            continue
        answers[name] = out.cpu().contiguous().view(torch.uint8).flatten().numpy().tobytes().hex()
    return answers


def list_differences(recorded: dict[str, str], now: dict[str, str]) -> list[str]:
    """List results that differ between checker and GPU, except where one of them refused."""
    changes = []
    for name, _, out in iterate_questions("cpu"):
        gpu_bits, checker_bits = recorded[name], now[name]
        if gpu_bits.startswith("refused") or checker_bits.startswith("refused"):
            continue
        pair = [
            torch.frombuffer(bytearray(bytes.fromhex(bits)), dtype=out.dtype)
            for bits in (gpu_bits, checker_bits)
        ]
        wrong = find_unlike(*pair, near=name.split()[0] in NEAR)
        if wrong.any():
            first = int(wrong.nonzero()[0])
            changes.append(
                f"{name}: {int(wrong.sum())} of {len(wrong)}, first at {first}: "
                f"the GPU gives {pair[0][first].item()}, the checker {pair[1][first].item()}"
            )
    return changes


def find_unlike(theirs: torch.Tensor, ours: torch.Tensor, near: bool) -> torch.Tensor:
    if not theirs.dtype.is_floating_point:
        return theirs != ours
    wide = theirs.double(), ours.double()
    nans = wide[0].isnan() & wide[1].isnan()
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[theirs.dtype.itemsize]
    apart = (theirs.view(bits).long() - ours.view(bits).long()).abs()
    same = apart <= (4 if near else 0)
    tiny = (wide[0].abs() < 2**-126) & (wide[1].abs() < 2**-126)  # flushed to zero on a GPU
    return ~(same | nans | (tiny & torch.tensor(near)))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--against", type=Path, metavar="RECORD")


def measure_case(options: argparse.Namespace) -> Iterator[Result]:
    if options.against is None:
        answers = compute_answers("cuda")
        yield Result({"answers": answers}, summary={"questions": len(answers)})
        return
    answers = compute_answers("cpu")
    summary = {
        "questions": len(answers),
        "refused": {name: text for name, text in answers.items() if text.startswith("refused")},
        "differences": list_differences(read_record(options.against)["answers"], answers),
    }
    yield Result({"answers": answers}, not summary["differences"], summary)
