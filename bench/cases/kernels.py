"""What checking costs: the launches of the suites, under check, beside Triton's own interpreter.

    .releases/0.5.23/bin/python -m bench.run kernels

The suites run once in the smoke profile and their launches are kept, with copies of their tensors;
launches over virtual tensors cannot be copied and are counted. A suite may have run a part of the
programs; a launch that is refused when all of them run is named. Then the median launch of each
kernel runs in two processes of its own: in Triton's plain interpreter, which checks nothing, and
compiled for this machine with every check; the best of several, and what a new specialisation costs
when it is made and when it is on disk.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.measuring import Result, time_call
from harness import checking

LARGEST = 1 << 26
ROUNDS = 7
KEPT = 40  # launches of a kernel; more would add nothing
MANY = 64  # the fewest programs of a large launch


@dataclass(frozen=True)
class NamedKernel:
    """A kernel by module and name, as each process has its own object."""

    module: str
    name: str

    @property
    def kernel(self) -> Any:
        found: Any = importlib.import_module(self.module)
        for part in self.name.split("."):
            found = getattr(found, part)
        while type(found).__name__ not in ("JITFunction", "InterpretedFunction"):
            found = found.fn
        return found


@dataclass(frozen=True)
class TensorView:
    """A tensor as a view of bytes; views of different types may share them."""

    storage: int
    dtype: torch.dtype
    place: tuple[Any, ...]  # offset, shape, strides


@dataclass(frozen=True)
class Launch:
    named: NamedKernel
    sides: tuple[int, ...]
    args: tuple[Any, ...]
    options: dict[str, Any]
    storages: dict[int, torch.Tensor]

    @property
    def programs(self) -> int:
        return math.prod(self.sides)

    def prepare_call(self) -> Callable[[], None]:
        """Import the kernel, create its tensors, and return the launch as a call."""
        kernel = self.named.kernel
        args = [self.find_value(value) for value in self.args]
        options = {name: self.find_value(value) for name, value in self.options.items()}
        return lambda: kernel[self.sides](*args, **options)

    def find_value(self, value: Any) -> Any:
        if isinstance(value, NamedKernel):
            return value.kernel
        if isinstance(value, TensorView):
            storage = self.storages[value.storage].untyped_storage()
            return torch.empty(0, dtype=value.dtype).set_(storage, *value.place)
        return value


def to_storable(value: Any, storages: dict[int, torch.Tensor]) -> Any:
    """Return a tensor or kernel argument in a form that another process can load."""
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage()
        whole = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,))
        storages.setdefault(storage.data_ptr(), whole.clone())
        place = value.storage_offset(), tuple(value.shape), value.stride()
        return TensorView(storage.data_ptr(), value.dtype, place)
    function = getattr(value, "fn", None)
    return value if function is None else NamedKernel(function.__module__, function.__qualname__)


class Launches:
    """A pytest plugin that records launches."""

    def __init__(self) -> None:
        self.kept: dict[str, list[bytes]] = defaultdict(list)
        self.too_large: Counter[str] = Counter()

    def pytest_configure(self) -> None:
        from harness.sanitizer.check.cpu_launcher import CpuLauncher

        launch = CpuLauncher.launch

        def keeping(session: Any, kernel: Any, args: Any, grid: Any, options: Any) -> None:
            self.keep(kernel, args, grid, options)
            launch(session, kernel, args, grid, options)

        CpuLauncher.launch = keeping  # type: ignore[method-assign]

    def keep(self, kernel: Any, args: tuple[Any, ...], grid: Any, options: dict[str, Any]) -> None:
        name = kernel.__name__
        tensors = [value for value in (*args, *options.values()) if isinstance(value, torch.Tensor)]
        if any(tensor.untyped_storage().nbytes() > LARGEST for tensor in tensors):
            self.too_large[name] += 1
        elif len(self.kept[name]) < KEPT:
            known = kernel.signature.parameters
            arguments = {each: value for each, value in options.items() if each in known}
            bound = kernel.signature.bind(*args, **arguments)
            bound.apply_defaults()
            sides = tuple(grid(dict(bound.arguments)) if callable(grid) else grid)
            storages: dict[int, torch.Tensor] = {}
            with (
                torch._C.DisableTorchFunction(),
                torch.utils._python_dispatch._disable_current_modes(),
            ):
                launch = Launch(
                    to_storable(kernel, storages),
                    sides,
                    tuple(to_storable(value, storages) for value in args),
                    {each: to_storable(value, storages) for each, value in arguments.items()},
                    storages,
                )
                file = io.BytesIO()
                torch.save(launch, file)
            self.kept[name].append(file.getvalue())


def load_launch(content: bytes) -> Launch:
    return torch.load(io.BytesIO(content), weights_only=False)  # type: ignore[no-any-return]


def measure_below(what: str, folder: Path, **variables: str) -> dict[str, Any]:
    """Measure one way to run the launches, in a separate process."""
    words = [sys.executable, "-m", "bench.cases.kernels", what, str(folder)]
    done = subprocess.run(words, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{what} ended with {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def iterate_launches(folder: Path) -> Iterator[tuple[str, Launch]]:
    for file in sorted(folder.iterdir()):
        yield file.name, load_launch(file.read_bytes())


def time_interpreter(folder: Path) -> dict[str, Any]:
    """Time each launch in Triton's own interpreter, which checks nothing."""
    results: dict[str, Any] = {}
    for name, launch in iterate_launches(folder):
        run = launch.prepare_call()
        try:
            run()
            results[name] = min(time_call(run) for _ in range(ROUNDS))
        except Exception as error:
            results[name] = f"fails: {error}"[:160]
    return results


def time_checked(folder: Path) -> dict[str, Any]:
    results: dict[str, Any] = {}
    checking.preload_checker()
    for name, launch in iterate_launches(folder):
        run, times = launch.prepare_call(), []
        try:
            for _ in range(ROUNDS + 1):
                with checking.checked("cpu"):
                    times.append(time_call(run))
        except checking.Violation as error:  # in programs that the suite excluded
            results[name] = f"refused: {error}".partition("\n")[0]
        else:
            results[name] = {"first": times[0] - min(times), "best": min(times)}
    return results


WAYS = {"plain": time_interpreter, "checked": time_checked}


def measure_launches(folder: Path) -> dict[str, Any]:
    """Time each launch in the interpreter, and under check with empty and full caches."""
    interpreter = measure_below("plain", folder, TRITON_INTERPRET="1")
    with tempfile.TemporaryDirectory() as home:
        cold = measure_below("checked", folder, UNFIX_HOME=home)
        warm = measure_below("checked", folder, UNFIX_HOME=home)
    results = {}
    for name, launch in iterate_launches(folder):
        if isinstance(cold[name], str):
            results[name] = {"programs": launch.programs, "checked": cold[name]}
            continue
        stock, ours = interpreter[name], min(cold[name]["best"], warm[name]["best"])
        results[name] = {
            "programs": launch.programs,
            "interpreter": stock,
            "checked": ours,
            "compiled": cold[name]["first"],
            "from disk": warm[name]["first"],
        }
        if isinstance(stock, float):
            results[name]["times faster"] = round(stock / ours, 1)
    return results


def summarize_results(results: dict[str, Any]) -> dict[str, Any]:
    rates = {name: one["times faster"] for name, one in results.items() if "times faster" in one}
    ran = [one for one in results.values() if "compiled" in one]
    large = [rate for name, rate in rates.items() if results[name]["programs"] >= MANY]
    return {
        "geometric mean": round(statistics.geometric_mean(rates.values()), 1),
        f"of {MANY} programs or more, at least": min(large, default=None),
        "slowest": min(rates.values()),
        "compiled, median ms": round(1e3 * statistics.median(one["compiled"] for one in ran), 1),
        "from disk, median ms": round(1e3 * statistics.median(one["from disk"] for one in ran), 2),
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--suites", default="suites")


def measure_case(options: argparse.Namespace) -> Iterator[Result]:
    launches = Launches()
    code = pytest.main([options.suites, "--profile", "smoke", "--device", "cpu"], [launches])
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name, copies in launches.kept.items():
            copies.sort(key=lambda content: load_launch(content).programs)
            (folder / name).write_bytes(copies[len(copies) // 2])
        results = measure_launches(folder)
    rates = {name: result.get("times faster", 1) for name, result in results.items()}
    summary = {
        **summarize_results(results),
        "slower than the interpreter": [name for name, rate in rates.items() if rate < 1],
    }
    values = {"summary": summary, "kernels": results, "virtual": dict(launches.too_large)}
    yield Result(values, not code and not summary["slower than the interpreter"], summary)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(WAYS[sys.argv[1]](Path(sys.argv[2]))))
