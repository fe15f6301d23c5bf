"""What a test under check costs at the least: CPU time a test, of suites of tiny kernels.

    python -m bench.suite_floor PYTHON [--before CHECKOUT] [--record FILE]

PYTHON has torch for CPUs, Triton, llvmlite and pytest. Two suites: 200 tests that launch one kernel
and 60 tests with a kernel each. Each runs under check twice (the first run compiles, in a new
workspace) and in Triton's interpreter, and once with a function of torch in place of the kernel,
which is what pytest itself takes. `--before` runs another checkout's checks by turns in the same
run. Times are a process's own CPU seconds in the tests, without its start.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.recording import make_parser, record_result

ROUNDS = 3
_PROJECT = Path(__file__).parents[1]
_CONFTEST = """
import json, os, time

def pytest_collection_finish():
    global began
    began = time.process_time()

def pytest_sessionfinish(session, exitstatus):
    assert exitstatus == 0, exitstatus
    seconds = time.process_time() - began
    with open(os.environ["FLOOR_FILE"], "w") as file:
        json.dump({"seconds": seconds, "tests": session.testscollected}, file)
"""
_HEAD = """
import os
import pytest
import torch
import triton
import triton.language as tl

device = os.environ["FLOOR_DEVICE"]
"""
_KERNEL = """
@triton.jit
def kernel_{number}(x, y, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < count, other=0.0)
    tl.store(y + at, tl.exp(value - tl.max(value, axis=0)) + {number}, mask=at < count)
"""
_TEST = """
{decorator}
def test_{number}({arguments}):
    x = torch.ones({size}, device=device)
    y = torch.empty_like(x)
    {launch}
    assert y.sum().item() == {size} * ({number} + 1)
"""


def write_suite(folder: Path, kernels: int, tests_of_each: int, launches: bool) -> None:
    text = [_HEAD]
    for number in range(kernels):
        launch = f"kernel_{number}[(({{size}} + 63) // 64,)](x, y, {{size}}, BLOCK=64)"
        decorator, arguments, size = "", "", "48"
        if tests_of_each > 1:
            decorator = f'@pytest.mark.parametrize("size", range(1, {tests_of_each + 1}))'
            arguments = size = "size"
        if launches:
            text.append(_KERNEL.format(number=number))
        text.append(
            _TEST.format(
                number=number,
                decorator=decorator,
                arguments=arguments,
                size=size,
                launch=launch.format(size=size) if launches else f"y.copy_(x + {number})",
            )
        )
    folder.mkdir()
    (folder / "test_floor.py").write_text("".join(text))
    (folder / "conftest.py").write_text(_CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\n")


def run_suite(python: str, folder: Path, checkout: Path | None, home: Path, **extra: str) -> float:
    """Run a suite, under a checkout's checks if there is one; return the milliseconds a test."""
    answer = home / "floor.json"
    words = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "FLOOR_FILE": str(answer),
        "FLOOR_DEVICE": "cpu",
        "UNFIX_HOME": str(home),
        "PYTHONPATH": "",
        **extra,
    }
    if checkout is not None:
        environment |= {"PYTHONPATH": str(checkout / "harness/startup"), "FLOOR_DEVICE": "cuda"}
        words += ["-p", "unfix_check", "--sanitize-device=virtual"]
    subprocess.run(
        [*words, "."], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL
    )
    found = json.loads(answer.read_text())
    return 1000 * found["seconds"] / found["tests"]


def measure_suites(python: str, suites: dict[str, Path], plain: Path, before: Path | None) -> Any:
    checkouts = {"now": _PROJECT, **({"before": before} if before else {})}
    result: dict[str, Any] = {}
    for name, folder in suites.items():
        times: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            for label, checkout in checkouts.items():
                with tempfile.TemporaryDirectory() as home:
                    (Path(home) / ".unfix").mkdir()
                    for moment in ("first run", "second run"):
                        times.setdefault(f"{label}, {moment}", []).append(
                            run_suite(python, folder, checkout, Path(home))
                        )
            with tempfile.TemporaryDirectory() as home:
                times.setdefault("Triton's interpreter", []).append(
                    run_suite(python, folder, None, Path(home), TRITON_INTERPRET="1")
                )
                times.setdefault("pytest alone", []).append(
                    run_suite(python, plain, None, Path(home))
                )
        result[name] = {case: round(min(found), 2) for case, found in times.items()}
    return result


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("python")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT")
    arguments = parser.parse_args()
    python = str(Path(arguments.python).absolute())
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        suites = {"one kernel": folder / "one", "a kernel each": folder / "each"}
        write_suite(suites["one kernel"], 1, 200, launches=True)
        write_suite(suites["a kernel each"], 60, 1, launches=True)
        write_suite(folder / "plain", 1, 200, launches=False)
        before = arguments.before and arguments.before.resolve()
        found = measure_suites(python, suites, folder / "plain", before)
    record_result({"milliseconds_a_test": found}, arguments.record, python=python)


if __name__ == "__main__":
    sys.exit(main())
