"""The checks beside triton-viz's sanitizer: the same tests on CPU tensors, in one run.

    python -m bench.beside_triton_viz PYTHON SITE [LIGER] [--record FILE]

PYTHON has torch for CPUs, Triton, llvmlite and pytest. SITE is a folder with triton-viz and what it
needs (`pip install --target SITE triton-viz`). The tests: `bench/planted`, and those of a checkout
of Liger-Kernel that run on CPU tensors: of N functions of each file (`--sample`) the smallest case.
Both tools run the same files by turns, some in a process (`--together`); a test that takes more CPU
time than the limit is ended. Past the budget no process starts, and the record names the files that
have not run; `--known RECORD` goes on from there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from bench.recording import make_parser, read_record, record_result

_BENCH = Path(__file__).parent
_STARTUP = _BENCH.parent / "harness/startup"
_TOOLS = ("unfix", "triton-viz")
_REPORTS = ("SystemExit", "OutOfBounds", "DataRace", "Uninit", "IntegerOverflow")
_REFUSALS = ("UnansweredName", "UncheckableKernel")
_LIGER_FILES = (
    "swiglu geglu rms_norm layer_norm softmax group_norm kl_div jsd tvd dyt relu_squared "
    "poly_norm embedding fused_add_rms_norm sparsemax"
).split()
_SANITIZE = "from triton_viz.wrapper import apply_sanitizer; apply_sanitizer()"


def run_files(
    python: str, tool: str, files: list[Path], root: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """Run the tests of files under one of the tools; return each test's outcome."""
    with tempfile.TemporaryDirectory() as folder:
        outcomes = Path(folder) / "outcomes.json"
        ours = tool == "unfix"
        places = [_BENCH / "selection", root, root / "src"]
        places.append(_STARTUP if ours else options.site.resolve())
        plugins = ["-p", "suite_selection", "-p", "suite_outcomes", "-p", "no:cacheprovider", "-q"]
        plugins += ["--import-mode=importlib", f"--confcutdir={root}"]
        if ours:
            words = ["-m", "pytest", "-p", "unfix_check", "--sanitize-device=cpu"]
        else:
            words = ["-c", _SANITIZE, "pytest"]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [python, *words, *plugins, *map(str, files)],
                cwd=root,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(map(str, places)),
                    "OUTCOMES": str(outcomes),
                    "OMP_NUM_THREADS": "1",
                    "SUITE_LIMIT": str(options.limit),
                    "SUITE_SAMPLE": str(0 if root.is_relative_to(_BENCH) else options.sample),
                },
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=1200,
                check=False,
            )
        return json.loads(outcomes.read_text()) if outcomes.is_file() else {}


def classify_test(test: dict[str, Any] | None) -> str:
    """Say in a word what a tool says of a test."""
    if test is None:
        return "not run"
    error = test["error"]
    if test["outcome"] != "failed":
        return str(test["outcome"])
    if error.startswith(_REPORTS):
        return "reported"
    if any(name in error for name in _REFUSALS):
        return "refused"
    return "too long" if "TestTookTooLong" in error else "failed"


def run_suite(
    python: str,
    files: list[Path],
    root: Path,
    known: dict[str, Any],
    options: argparse.Namespace,
    deadline: float,
) -> dict[str, Any]:
    tests: dict[str, dict[str, Any]] = dict(known.get("tests", {}))
    names = known.get("not_run")
    left = [file for file in files if names is None or str(file.relative_to(root)) in names]
    silent: list[Path] = []  # files of a process that ended without outcomes
    while left and time.monotonic() < deadline:
        group, left = left[: options.together], left[options.together :]
        for tool in _TOOLS:
            outcomes = run_files(python, tool, group, root, options)
            if not outcomes:
                silent += [file for file in group if file not in silent]
            for test, found in outcomes.items():
                tests.setdefault(test, {})[tool] = found
        print(*(file.name for file in group), flush=True)
    ran_in_both = [test for test in tests.values() if all(tool in test for tool in _TOOLS)]
    return {
        "counts": {
            tool: dict(Counter(classify_test(test.get(tool)) for test in tests.values()))
            for tool in _TOOLS
        },
        "seconds": {
            tool: round(sum(test[tool]["seconds"] for test in ran_in_both), 1) for tool in _TOOLS
        },
        "not_run": [str(file.relative_to(root)) for file in [*silent, *left]],
        "tests": tests,
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("python")
    parser.add_argument("site", type=Path)
    parser.add_argument("liger", type=Path, nargs="?")
    parser.add_argument("--known", type=Path, metavar="RECORD")
    parser.add_argument("--limit", type=int, default=60, help="CPU seconds of a test")
    parser.add_argument("--sample", type=int, default=0, help="functions of a file; 0 is all")
    parser.add_argument("--together", type=int, default=1, help="files of a process")
    parser.add_argument("--budget", type=float, default=3600, help="seconds")
    arguments = parser.parse_args()
    python = str(Path(arguments.python).absolute())
    deadline = time.monotonic() + arguments.budget
    known = read_record(arguments.known) if arguments.known else {}
    suites = {"planted": (_BENCH / "planted", [_BENCH / "planted/test_planted.py"])}
    if arguments.liger:
        folder = arguments.liger.resolve()
        files = [folder / f"test/transformers/test_{name}.py" for name in _LIGER_FILES]
        suites["Liger-Kernel"] = (folder, [file for file in files if file.is_file()])
    result = {
        name: run_suite(python, files, root, known.get(name, {}), arguments, deadline)
        for name, (root, files) in suites.items()
    }
    places = ["PYTHON", "SITE", *(["LIGER"] if arguments.liger else [])]
    limits = ["--limit", str(arguments.limit), "--sample", str(arguments.sample)]
    sys.argv = ["bench/beside_triton_viz.py", *places, *limits]
    record_result(result, arguments.record, python=python)


if __name__ == "__main__":
    sys.exit(main())
