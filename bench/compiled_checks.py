"""What checks compiled in cost on a GPU: kernels at real sizes, plain and checked.

    unfix exec --record FILE -- python bench/compiled_checks.py

The kernels are those of `release_kernels.py`, which need SGLang 0.5.23. Each line: a kernel, its
milliseconds as it is, and how many times that with checks (of bounds, the default ones, all); and
what the first launch took, which compiles it. The last lines are geometric means. Each is captured
in a graph, so that what is timed is the kernel and not its launch. It ends 1 if a kernel failed, or
a check was refused or reported something.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton.testing

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import release_kernels
from harness.sanitizer.gpu import ALL_CHECKS, DEFAULT_CHECKS, checked_launches, process_reports

CHECKS = {"bounds": ("bounds",), "default": DEFAULT_CHECKS, "all": ALL_CHECKS}


def time_launch(launch: Callable[[], Any]) -> tuple[float, float]:
    """Return the milliseconds of a launch, and the seconds of the first one."""
    began = time.perf_counter()
    launch()
    torch.cuda.synchronize()
    first = time.perf_counter() - began
    return float(triton.testing.do_bench_cudagraph(launch, rep=50)), first


def time_with_checks(
    launch: Callable[[], Any], checks: tuple[str, ...]
) -> tuple[float, float, str, str]:
    """Return what `time_launch` does under check, why it fails, and what is left out."""
    launcher = checked_launches.CheckedLauncher(checks, strict=True)
    launcher.start()
    try:
        milliseconds, first = time_launch(launch)
    finally:
        launcher.stop()
    failures = [each.describe_refusals() for each in launcher.summaries if each.refusals]
    skipped = [why for each in launcher.summaries for why in each.skipped_checks]
    if reports := list(process_reports.PROCESS_REPORTS.read_new_reports()):
        failures.append(f"{len(reports)} reports")
    return milliseconds, first, "; ".join(failures), "; ".join(skipped)


def main() -> int:
    ratios: dict[str, list[float]] = {name: [] for name in CHECKS}
    compiled: dict[str, list[float]] = {name: [] for name in CHECKS}
    failures = 0
    for name, make_launch in release_kernels.MAKERS.items():
        try:
            launch = make_launch()
            plain, first = time_launch(launch)
        except Exception as error:
            failures += 1
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
            continue
        words = [f"{name}: {plain:.4f} ms, compiled in {first:.2f} s"]
        for level, checks in CHECKS.items():
            try:
                now, first_checked, failure, skipped = time_with_checks(launch, checks)
            except Exception as error:  # a refusal
                now, first_checked, skipped = 0.0, 0.0, ""
                failure = f"{type(error).__name__}: {error}"
            if failure:
                failures += 1
                words.append(f"{level}: {failure}")
                continue
            words.append(f"{level} x {now / plain:.2f}, in {first_checked:.2f} s")
            if skipped:  # it is in no mean
                words.append(f"without {skipped}")
                continue
            ratios[level].append(now / plain)
            compiled[level].append(first_checked / first)
        print("; ".join(words), flush=True)
    for title, by_level in (("geometric mean", ratios), ("the first launch", compiled)):
        means = (
            f"{level} x {statistics.geometric_mean(found):.2f}"
            for level, found in by_level.items()
            if found
        )
        print(f"{title}: {'; '.join(means)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
