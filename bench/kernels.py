"""What checking costs: the launches of the suites, checked, beside Triton's own interpreter.

    .releases/0.5.18/bin/python bench/kernels.py [--record FILE] [--viz FOLDER]   (PYTHONPATH=.)

The suites run once in the smoke profile and their launches are kept, with copies of their tensors;
launches over virtual tensors cannot be copied and are counted. Then the median launch of each
kernel runs both ways in turn, the best of several. With `--viz`, a folder where triton-viz is
installed, its sanitizer gets the same launches, each in a process of its own.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

from harness import checking, machine

LARGEST = 1 << 26
ROUNDS = 7
KEPT = 40  # launches of a kernel; more of them say nothing new


class Launches:
    """A pytest plugin that keeps what was launched."""

    def __init__(self) -> None:
        self.kept: dict[str, list[Launch]] = defaultdict(list)
        self.too_large: Counter[str] = Counter()

    def pytest_configure(self) -> None:
        run = InterpretedFunction.run

        def keeping(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
            self.keep(kernel, args, grid, options)
            return run(kernel, *args, grid=grid, warmup=warmup, **options)

        InterpretedFunction.run = keeping

    def keep(self, kernel: Any, args: tuple[Any, ...], grid: Any, options: dict[str, Any]) -> None:
        name = kernel.__name__
        tensors = [value for value in (*args, *options.values()) if isinstance(value, torch.Tensor)]
        if any(tensor.untyped_storage().nbytes() > LARGEST for tensor in tensors):
            self.too_large[name] += 1
        elif len(self.kept[name]) < KEPT:
            self.kept[name].append(Launch(kernel, copied(args), grid, copied(options)))


class Launch:
    def __init__(self, kernel: Any, args: Any, grid: Any, options: Any) -> None:
        self.kernel, self.args, self.grid, self.options = kernel, args, grid, options

    @property
    def sides(self) -> tuple[int, ...]:
        return tuple(self.grid(self.options) if callable(self.grid) else self.grid)

    @property
    def programs(self) -> int:
        return math.prod(self.sides)

    def run(self) -> None:
        self.kernel[self.grid](*self.args, **self.options)


def copied(value: Any) -> Any:
    """Tensors of their own, with the strides they had."""
    with torch.utils._python_dispatch._disable_current_modes():
        return copy.deepcopy(value)


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def checked(launch: Launch) -> float:
    with checking.checked("cpu"):
        return seconds(launch.run)


def measured(launch: Launch) -> dict[str, Any]:
    told: dict[str, Any] = {"programs": launch.programs}
    try:
        launch.run()
    except Exception as error:
        return {**told, "interpreter": f"fails: {error}"[:160], "checked": checked(launch)}
    pairs = [(seconds(launch.run), checked(launch)) for _ in range(ROUNDS)]
    stock, ours = (min(times) for times in zip(*pairs, strict=True))
    return {**told, "interpreter": stock, "checked": ours, "ratio": round(ours / stock, 2)}


def sanitized(launch: Launch, folder: str) -> dict[str, Any]:
    """triton-viz's sanitizer on the same launch. It wants Triton compiling, and may die."""
    function = launch.kernel.fn
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "launch"
        where = (function.__module__, function.__name__, launch.sides)
        torch.save((*where, launch.args, launch.options), file)
        environment = {**os.environ, "TRITON_INTERPRET": "0"}
        words = [sys.executable, __file__, "--sanitize", str(file), "--viz", folder]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    last = done.stdout.splitlines()[-1:] or [f"died, exit code {done.returncode}"]
    return {"outcome": last[0]}


def sanitize(file: Path, folder: str) -> None:
    sys.path.append(folder)
    module, name, grid, args, options = torch.load(file, weights_only=False)
    kernel = getattr(importlib.import_module(module), name)
    import triton_viz

    traced = triton_viz.trace(client="sanitizer")(kernel)
    try:
        took = seconds(lambda: traced[grid](*args, **options))
        print(f"runs in {took:.3f} s")
    except BaseException as error:
        print(f"{type(error).__name__}: {error}"[:160].replace("\n", " "))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--viz")
    parser.add_argument("--suites", default="suites")
    parser.add_argument("--sanitize", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.sanitize:
        sanitize(options.sanitize, options.viz)
        return 0
    torch.set_num_threads(1)
    launches = Launches()
    code = pytest.main([options.suites, "--profile", "smoke", "--device", "cpu"], [launches])
    print(f"pytest ended with {int(code)}", file=sys.stderr)
    told = {}
    for name, kept in sorted(launches.kept.items()):
        kept.sort(key=lambda launch: launch.programs)
        median = kept[len(kept) // 2]
        told[name] = measured(median)
        if options.viz:
            told[name]["triton-viz"] = sanitized(median, options.viz)
        print(name, told[name])
    result = {
        "machine": machine.facts(),
        "command": sys.argv,
        "kernels": told,
        "virtual": dict(launches.too_large),
    }
    if options.record:
        options.record.write_text(json.dumps(result, indent=1) + "\n")
    slow = {name: each["ratio"] for name, each in told.items() if each.get("ratio", 0) > 1.5}
    print(f"above 1.5: {slow}" if slow else "none above 1.5 times the interpreter")
    return bool(slow) or int(code)


if __name__ == "__main__":
    sys.exit(main())
