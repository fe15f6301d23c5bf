"""The checks beside triton-viz's sanitizer: the same tests on CPU tensors, in one run.

    python bench/beside_triton_viz.py PYTHON SITE [LIGER] [--record FILE]

PYTHON has torch for CPUs, Triton, llvmlite and pytest. SITE is a folder with triton-viz and what it
needs (`pip install --target SITE triton-viz`). The tests: `bench/planted`, and those of a checkout
of Liger-Kernel that run on CPU tensors, the smallest case of each function. Both tools run each
file in a process of its own, by turns; a test that takes more than a minute is ended.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from bench.recording import record

_BENCH = Path(__file__).parent
_STARTUP = _BENCH.parent / "harness/startup"
_LIMIT = 60
_LIGER_FILES = (
    "swiglu geglu rms_norm layer_norm softmax group_norm kl_div jsd tvd dyt relu_squared "
    "poly_norm embedding fused_add_rms_norm sparsemax"
).split()
_SANITIZE = "from triton_viz.wrapper import apply_sanitizer; apply_sanitizer()"


def run_file(python: str, tool: str, file: Path, root: Path, site: Path) -> dict[str, Any]:
    """Run a file's tests under one of the tools; return each test's outcome."""
    with tempfile.TemporaryDirectory() as folder:
        outcomes = Path(folder) / "outcomes.json"
        ours = tool == "unfix"
        places = [_BENCH / "selection", root, root / "src", _STARTUP if ours else site]
        options = ["-p", "suite_selection", "-p", "suite_outcomes", "-p", "no:cacheprovider", "-q"]
        if ours:
            words = ["-m", "pytest", "-p", "unfix_check", "--unfix-device=cpu"]
        else:
            words = ["-c", _SANITIZE, "pytest"]
        subprocess.run(
            [python, *words, *options, str(file)],
            cwd=root,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(map(str, places)),
                "OUTCOMES": str(outcomes),
                "OMP_NUM_THREADS": "1",
                "SUITE_LIMIT": str(_LIMIT),
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=20 * _LIMIT,
            check=False,
        )
        return json.loads(outcomes.read_text()) if outcomes.is_file() else {}


def classify(test: dict[str, Any] | None) -> str:
    """Say in a word what a tool says of a test."""
    if test is None:
        return "not run"
    error = test["error"]
    if test["outcome"] != "failed":
        return str(test["outcome"])
    if error.startswith(("SystemExit", "OutOfBounds", "DataRace", "Uninit", "IntegerOverflow")):
        return "reported"
    return "too long" if "TestTookTooLong" in error else "failed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python")
    parser.add_argument("site", type=Path)
    parser.add_argument("liger", type=Path, nargs="?")
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()
    python, site = str(Path(arguments.python).absolute()), arguments.site.resolve()
    suites = {"planted": (_BENCH / "planted", [_BENCH / "planted/test_planted.py"])}
    if arguments.liger:
        folder = arguments.liger.resolve()
        files = [folder / f"test/transformers/test_{name}.py" for name in _LIGER_FILES]
        suites["Liger-Kernel"] = (folder, [file for file in files if file.is_file()])
    result: dict[str, Any] = {}
    for name, (root, files) in suites.items():
        tests: dict[str, dict[str, Any]] = {}
        for file in files:
            for tool in ("unfix", "triton-viz"):
                for test, found in run_file(python, tool, file, root, site).items():
                    tests.setdefault(test, {})[tool] = found
            print(file.name, flush=True)
        result[name] = {
            "counts": {
                tool: dict(Counter(classify(test.get(tool)) for test in tests.values()))
                for tool in ("unfix", "triton-viz")
            },
            "seconds": {
                tool: round(
                    sum(test[tool]["seconds"] for test in tests.values() if tool in test), 1
                )
                for tool in ("unfix", "triton-viz")
            },
            "tests": tests,
        }
    record(result, arguments.record, python=python)


if __name__ == "__main__":
    sys.exit(main())
