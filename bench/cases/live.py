"""What a live toggle costs in and out, on a real release, beside SGLang's own patcher.

    .releases/0.5.18/bin/python -m bench.run live

A function: 27360, which SGLang's own registry still reverts, so both do the same edit to the same
method in one run. A kernel: 25418-dequant-int64. The first time makes the plan and compiles the
patched module; afterwards a toggle goes in and out from what was kept.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import statistics
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from bench.measuring import Result, time_call
from harness import toggles

FUNCTION = "27360"
KERNEL = "25418-dequant-int64"
MODULES = (
    "sglang.srt.layers.attention.flashattention_backend",
    "sglang.srt.layers.attention.deepseek_v4_backend",
)
ROUNDS = 200
LIMITS_MS = {"function": 10, "kernel": 20}


def time_in_and_out(make: Callable[[], AbstractContextManager[Any]]) -> float:
    """Return the milliseconds that entering and leaving a context takes."""

    def enter_and_leave() -> None:
        with make():
            pass

    return 1000 * time_call(enter_and_leave)


def upstream_patcher() -> Callable[[], AbstractContextManager[Any]]:
    """Return a context manager that applies SGLang's own registered revert."""
    registry = importlib.import_module("sglang.srt.debug_utils.pr_fix_toggle")
    patcher = importlib.import_module("sglang.srt.debug_utils.source_patcher")
    text = registry._PR_FIX_REVERT_YAML[int(FUNCTION)]

    @contextlib.contextmanager
    def revert_upstream() -> Any:
        with contextlib.redirect_stdout(io.StringIO()):
            states = patcher.apply_patches_from_config(text)
        try:
            yield
        finally:
            for state in states:
                state.restore()

    return revert_upstream


def measure_case(options: argparse.Namespace) -> Iterator[Result]:
    warnings.simplefilter("ignore")
    for module in MODULES:
        importlib.import_module(module)
    ours, kernel = toggles.reverted(FUNCTION), toggles.reverted(KERNEL)
    sides = {"function": lambda: ours, "upstream": upstream_patcher(), "kernel": lambda: kernel}
    first = {name: time_in_and_out(sides[name]) for name in ("function", "kernel")}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(ROUNDS):  # by turns, so that noise affects all alike
        for name, make in sides.items():
            times[name].append(time_in_and_out(make))
    median = {name: statistics.median(found) for name, found in times.items()}
    result = {
        "rounds": ROUNDS,
        "first_ms": first,
        "median_ms": median,
        "upstream_over_ours": median["upstream"] / median["function"],
    }
    yield Result(result, all(median[name] < limit for name, limit in LIMITS_MS.items()))
