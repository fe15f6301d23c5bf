"""What checks compiled in cost on a GPU: kernels at real sizes, plain and checked.

    unfix exec --record FILE -- python bench/compiled_checks.py [own|release]

`own`: kernels of five plain forms, beside this; `release`: those of `release_kernels.py`, which
need SGLang 0.5.23. Each line: a kernel, its milliseconds as it is, and how many times that with
checks (of bounds, the default ones, all); and what the first launch took, which compiles it. The
last lines are geometric means. Each is captured in a graph, so that what is timed is the kernel and
not its launch. It ends 1 if a check was refused or reported something.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
import triton.testing

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness.kernels.gpu import ALL_CHECKS, DEFAULT_CHECKS, checked_launches, process_reports

CHECKS = {"bounds": ("bounds",), "default": DEFAULT_CHECKS, "all": ALL_CHECKS}


@triton.jit
def copy_block(source, target, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at, mask=at < count), mask=at < count)


@triton.jit
def gather_rows(source, rows, target, count, stride, WIDTH: tl.constexpr):
    at = tl.arange(0, WIDTH)
    total = tl.zeros((WIDTH,), tl.float32)
    for turn in range(count):
        row = tl.load(rows + tl.program_id(0) * count + turn)
        total += tl.load(source + row * stride + at)
    tl.store(target + tl.program_id(0) * WIDTH + at, total)


@triton.jit
def normalize_row(source, target, stride, width, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(source + row * stride + at, mask=at < width, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / width + 1e-6)
    tl.store(target + row * stride + at, (value * scale).to(tl.float16), mask=at < width)


@triton.jit
def store_rows(values, slots, pool, stride, WIDTH: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, WIDTH)
    slot = tl.load(slots + row)
    tl.store(pool + slot.to(tl.int64) * stride + at, tl.load(values + row * WIDTH + at))


@triton.jit
def multiply_tiles(
    a, b, c, deep, ROWS: tl.constexpr, LANES: tl.constexpr, DEEP: tl.constexpr, WIDTH: tl.constexpr
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    lane = tl.program_id(1) * LANES + tl.arange(0, LANES)
    step = tl.arange(0, DEEP)
    left, right = a + row[:, None] * deep + step[None, :], b + step[:, None] * WIDTH + lane[None, :]
    total = tl.zeros((ROWS, LANES), tl.float32)
    for _ in range(0, deep, DEEP):
        total = tl.dot(tl.load(left), tl.load(right), total)
        left += DEEP
        right += DEEP * WIDTH
    tl.store(c + row[:, None] * WIDTH + lane[None, :], total.to(tl.float16))


def cases() -> dict[str, Callable[[], Any]]:
    def on(*shape: int, kind: torch.dtype = torch.float16) -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=kind)

    large, other = on(1 << 26, kind=torch.float32), on(1 << 26, kind=torch.float32)
    rows = torch.randint(0, 200_000, (256 * 1024,), device="cuda", dtype=torch.int32)
    table, sums = on(200_000, 128, kind=torch.float32), on(256, 128, kind=torch.float32)
    hidden, result = on(8192, 4096), on(8192, 4096)
    pool, values = on(1 << 18, 1024), on(16384, 1024)
    slots = torch.randperm(1 << 18, device="cuda")[:16384]
    a, b, c = on(4096, 4096), on(4096, 4096), on(4096, 4096)
    return {
        "copied, 256 MiB": lambda: copy_block[(1 << 16,)](large, other, 1 << 26, BLOCK=1024),
        "gathered, 1024 rows of 128": lambda: gather_rows[(256,)](
            table, rows, sums, 1024, 128, WIDTH=128
        ),
        "normed, 8192 x 4096": lambda: normalize_row[(8192,)](
            hidden, result, 4096, 4000, BLOCK=4096
        ),
        "stored, 16384 rows of 1024": lambda: store_rows[(16384,)](
            values, slots, pool, 1024, WIDTH=1024
        ),
        "multiplied, 4096 cubed": lambda: multiply_tiles[(32, 32)](
            a, b, c, 4096, ROWS=128, LANES=128, DEEP=64, WIDTH=4096, num_warps=8
        ),
    }


def time_launch(launch: Callable[[], Any]) -> tuple[float, float]:
    """Return the milliseconds of a launch, and the seconds of the first one."""
    began = time.perf_counter()
    launch()
    torch.cuda.synchronize()
    first = time.perf_counter() - began
    return float(triton.testing.do_bench_cudagraph(launch, rep=50)), first


def mean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def time_with_checks(
    launch: Callable[[], Any], checks: tuple[str, ...]
) -> tuple[float, float, str]:
    """Return what `time_launch` does under check, and why the launches count for nothing."""
    launcher = checked_launches.CheckedLauncher(checks, strict=True)
    launcher.start()
    try:
        milliseconds, first = time_launch(launch)
    finally:
        launcher.stop()
    failures = [each.describe_refusals() for each in launcher.summaries if each.refusals]
    failures += [why for each in launcher.summaries for why in each.skipped_checks]
    if reports := list(process_reports.PROCESS_REPORTS.read_new_reports()):
        failures.append(f"{len(reports)} reports")
    return milliseconds, first, "; ".join(failures)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kernels", nargs="?", choices=("own", "release"), default="own")
    if parser.parse_args().kernels == "release":
        import release_kernels

        chosen = release_kernels.cases()
    else:
        chosen = cases()
    ratios: dict[str, list[float]] = {name: [] for name in CHECKS}
    compiled: dict[str, list[float]] = {name: [] for name in CHECKS}
    failures = 0
    for name, launch in chosen.items():
        plain, first = time_launch(launch)
        words = [f"{name}: {plain:.4f} ms, compiled in {first:.2f} s"]
        for level, checks in CHECKS.items():
            now, first_checked, failure = time_with_checks(launch, checks)
            if failure:
                failures += 1
                words.append(f"{level}: {failure}")
                continue
            ratios[level].append(now / plain)
            compiled[level].append(first_checked / first)
            words.append(f"{level} x {now / plain:.2f}, in {first_checked:.2f} s")
        print("; ".join(words), flush=True)
    for title, by_level in (("geometric mean", ratios), ("the first launch", compiled)):
        means = (f"{level} x {mean(found):.2f}" for level, found in by_level.items() if found)
        print(f"{title}: {'; '.join(means)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
