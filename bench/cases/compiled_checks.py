"""What checks compiled in cost on a GPU: kernels at real sizes, plain and checked.

    python -m bench.run compiled_checks        on a GPU, with SGLang 0.5.23

Of each kernel of `release_kernels.py`: its milliseconds, how many times that with checks (of
bounds, the default ones, all), and the same of its first launch, which compiles it. Each is
captured in a graph, so that its launch is not timed. A kernel that fails, a check
that is refused and a report are failures.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton.testing

from bench.cases import release_kernels
from bench.measuring import Result, time_call
from harness.sanitizer.gpu import ALL_CHECKS, DEFAULT_CHECKS, checked_launches, process_reports

CHECKS = {"bounds": ("bounds",), "default": DEFAULT_CHECKS, "all": ALL_CHECKS}
TITLES = ("times as long", "the first launch, times as long")


def time_launch(launch: Callable[[], Any]) -> tuple[float, float]:
    """Return the milliseconds of a launch, and the seconds of the first one."""
    first = time_call(lambda: (launch(), torch.cuda.synchronize()))
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


def measure_case(options: argparse.Namespace) -> Iterator[Result]:
    kernels: dict[str, dict[str, Any]] = {}
    for name, make_launch in release_kernels.MAKERS.items():
        kernels[name] = measure_kernel(make_launch)
        print(name, kernels[name], flush=True)
    failures = {name: found["failures"] for name, found in kernels.items() if found["failures"]}
    means = {
        title: {level: find_mean(kernels, title, level) for level in CHECKS} for title in TITLES
    }
    values = {"geometric means": means, "failures": failures, "kernels": kernels}
    yield Result(values, not failures, {"geometric means": means, "failures": failures})


def measure_kernel(make_launch: Callable[[], Callable[[], Any]]) -> dict[str, Any]:
    """Measure a kernel as it is, and the factor of each level of checks."""
    found: dict[str, Any] = {"failures": [], **{title: {} for title in TITLES}}
    try:
        launch = make_launch()
        plain, first = time_launch(launch)
        found |= {"milliseconds": plain, "first launch, seconds": first}
        for level, checks in CHECKS.items():
            now, first_checked, failure, skipped = time_with_checks(launch, checks)
            if failure:
                found["failures"].append(f"{level}: {failure}")
            elif skipped:  # it is in no mean
                found[f"left out of {level}"] = skipped
            else:
                for title, factor in zip(TITLES, (now / plain, first_checked / first), strict=True):
                    found[title][level] = factor
    except Exception as error:  # a kernel that this release lacks, or a refusal
        found["failures"].append(f"{type(error).__name__}: {error}")
    return found


def find_mean(kernels: dict[str, dict[str, Any]], title: str, level: str) -> float:
    factors = [found[title][level] for found in kernels.values() if level in found[title]]
    return round(statistics.geometric_mean(factors), 2) if factors else 0.0
