"""How fast kernels in PTX run on this CPU: instructions a second, with and without checks.

    ./unfix exec --release 0.5.23 -- python -m bench.run ptx_executor

Each kernel runs once with a counter in each of its blocks, which gives the instructions of a
launch, and then as it is: with bounds and alignment alone, and with every check. Times are the
best of several launches, after the kernel is compiled thoroughly; the load average says what else
ran meanwhile.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.measuring import Result, time_call
from harness.sanitizer.ptx.abi import ContextField
from harness.sanitizer.ptx.compiled_kernels import get_runtime
from harness.sanitizer.ptx.executor import load_module
from harness.sanitizer.ptx.launch import Allocation, CudaLaunch, ExecutorChecks
from harness.sanitizer.ptx.launch_memory import LaunchMemory
from harness.sanitizer.ptx.lowering import PtxLowering
from harness.sanitizer.ptx.reader import read_kernel

TEXT = (Path(__file__).parents[1] / "small" / "ptx_rows.ptx").read_text()
ROWS, WIDTH, THREADS = 64, 4096, 256
CHECKS = {
    "bounds": ExecutorChecks(overflow=False, uninitialized=False, races=False),
    "all checks": ExecutorChecks(),
}
_NO_INSTRUCTION = ("ptx.constant", "ptx.symbol", "ptx.undefined", "ptx.special")


class CountingLowering(PtxLowering):
    """Counts the executions of each block in 64 bits."""

    def _emit_ran(self, number: int) -> None:
        counts = self.code.to_pointer(self.code.get_context(ContextField.RAN_FLAGS))
        self.code.increment(self.code.element_pointer(counts, "i64", number), "1")


def measure_case(options: argparse.Namespace) -> Iterator[Result]:
    result: dict[str, Any] = {}
    for name, launch in make_launches().items():
        instructions = count_instructions(launch)
        row: dict[str, Any] = {"instructions of a launch": instructions}
        for words, checks in CHECKS.items():
            row[f"million instructions a second, {words}"] = round(
                instructions / time_launch(launch, checks) / 1e6, 1
            )
        result[name] = row
    yield Result({"load average": round(os.getloadavg()[0], 1), "kernels": result})


def make_launches() -> dict[str, CudaLaunch]:
    random = np.random.default_rng(0)
    values = random.normal(size=(ROWS, WIDTH)).astype(np.float32)
    integers = random.integers(0, 1 << 32, (ROWS, WIDTH), dtype=np.uint32)
    rows = random.permutation(ROWS)
    out, counts = np.zeros_like(values), np.zeros((ROWS, 256), np.uint32)
    epsilon = int(np.float32(1e-6).view(np.uint32))
    arguments: dict[str, tuple[dict[str, Any], tuple[Any, ...]]] = {
        "copy_rows": ({"in": values, "out": out, "rows": rows}, (values, out, rows, WIDTH // 4)),
        "normalize_rows": ({"in": values, "out": out}, (values, out, WIDTH | epsilon << 32)),
        "count_digits": ({"in": integers, "out": counts}, (integers, counts, WIDTH)),
        "evaluate": ({"in": values, "out": out}, (values, out, 200)),
    }
    return {
        name: CudaLaunch(
            name,
            name,
            (ROWS, 1, 1),
            (THREADS, 1, 1),
            0,
            b"".join(
                (one if isinstance(one, int) else int(one.ctypes.data)).to_bytes(8, "little")
                for one in values_of_parameters
            ),
            tuple(describe_array(one, array) for one, array in tensors.items()),
            lambda _: None,
        )
        for name, (tensors, values_of_parameters) in arguments.items()
    }


_ARRAYS: list[Any] = []  # launches hold addresses, and these the memory


def describe_array(name: str, array: Any) -> Allocation:
    _ARRAYS.append(array)
    return Allocation(name, int(array.ctypes.data), array.nbytes, str(array.dtype), array.shape)


def count_instructions(launch: CudaLaunch) -> int:
    module = load_module(TEXT).ptx
    kernel = module.read_kernel(launch.entry)
    graph = read_kernel(module, kernel)
    lowered = CountingLowering(module, kernel, graph, False).lower()
    jit = get_runtime().jit
    [function] = jit.load_functions(jit.compile_object(lowered.text, False), "thread")
    memory = LaunchMemory(launch, lowered, CHECKS["bounds"], [0] * len(lowered.variables), function)
    counts = np.zeros(len(graph.body.blocks), np.int64)
    memory.context[ContextField.RAN_FLAGS] = int(counts.ctypes.data)
    if get_runtime().launch(ctypes.addressof(memory.context)):
        raise RuntimeError(f"{launch.name}: a violation")
    memory.finish()
    sizes = [
        sum(operation.name not in _NO_INSTRUCTION for operation in block.operations)
        for block in graph.body.blocks
    ]
    return int(counts @ np.array(sizes))


def time_launch(launch: CudaLaunch, checks: ExecutorChecks) -> float:
    module = load_module(TEXT)
    begin = time.perf_counter()
    while time.perf_counter() - begin < 1:  # until it is compiled thoroughly
        launch_once(module, launch, checks)
    return min(time_call(lambda: launch_once(module, launch, checks)) for _ in range(10))


def launch_once(module: Any, launch: CudaLaunch, checks: ExecutorChecks) -> None:
    for error in module.run(launch, checks):
        raise error
