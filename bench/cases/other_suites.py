"""Other packages' test suites under check on this CPU: what passes, is reported, is refused, why.

    python -m bench.run other_suites PYTHON NAME=TESTS… [--limit 60] [--budget 1500]
    python -m bench.run other_suites .releases/0.5.23/bin/python \\
        SGLang=CHECKOUT/test/registered@bench/selection/sglang_registered.txt

PYTHON has torch, Triton, pytest and the packages under test. Each file of tests is a process of its
own (`-p unfix_check --sanitize-device=virtual`); with `--together` several are one, and each is run
alone if that leaves no record. `@LIST` names a file with the paths of those to run. Files of the
records that `--known` names are taken from there and not run again: a run can be divided. `--again`
names those of them that are; `--without`, functions that are kept out, with more memory than a
machine has, for example. With `--cuda-kernels` SGLang's own CUDA C++ kernels run, in place of
stand-ins; the record names the files that ran so.
Of each test function the smallest case runs (`--cases`), by the product of its numbers, as upstream
wrote it; with `--sample N`, of N functions of each file, the same ones at each run. The record has
the numbers of cases and functions of each file and of those that ran. A test that takes more CPU
time than the limit is ended. `--beside-interpreter OPTIONS` runs the same tests in Triton's
interpreter, too, with further options of pytest (`--device=cpu`).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bench.measuring import Result, read_record
from harness.core.device import DEVICE_VARIABLE, VIRTUAL
from harness.patching.child_environment import STARTUP_FOLDER, ChildEnvironment

_SELECTION = Path(__file__).parents[1] / "selection"  # alone: it goes on the path of a suite


def run_files(
    python: str, files: list[Path], root: Path, options: argparse.Namespace, deadline: float
) -> dict[str, dict[str, Any]]:
    """Run files in one process; return the record of each that ran, or none if there is none."""
    with tempfile.TemporaryDirectory() as folder:
        record, counts = Path(folder) / "record.json", Path(folder) / "counts.json"
        seconds = max(1.0, deadline - time.monotonic())
        limits = {
            "SUITE_LIMIT": str(options.limit),
            "SUITE_BUDGET": str(seconds),
            "SUITE_SAMPLE": str(options.sample),
            "SUITE_CASES": str(options.cases),
            "SUITE_COUNTS": str(counts),
            "SUITE_WITHOUT": ",".join(options.without),
        }
        if options.beside_interpreter is not None:
            limits["SUITE_OUTCOMES"] = str(Path(folder) / "outcomes.json")
        if options.cuda_kernels:
            limits |= {DEVICE_VARIABLE: VIRTUAL, "UNFIX_CUDA_KERNELS": "run"}
        environment = ChildEnvironment({"OMP_NUM_THREADS": "1", "COLUMNS": "300", **limits})
        environment.use_checkout()
        environment.add_python_path(STARTUP_FOLDER, _SELECTION, root, root / "src")
        words = ["-p", "suite_selection", "-p", "no:cacheprovider", "-q", "--tb=short", "-rfEs"]
        words += [
            f"--import-mode={options.import_mode}",
            "--continue-on-collection-errors",
            f"--rootdir={root}",
        ]
        command = [python, "-m", "pytest", *words, *map(str, files)]
        checked = ["-p", "unfix_check", "--sanitize-device=virtual", f"--sanitize-record={record}"]
        began, seconds = time.monotonic(), seconds + options.grace
        output = run_pytest([*command, *checked], root, environment, seconds)
        taken = round(time.monotonic() - began, 1)
        tests = read_values(record).get("tests", {})
        counted = read_values(counts)
        if options.beside_interpreter is not None:
            outcomes = Path(limits["SUITE_OUTCOMES"])
            both = [read_values(outcomes)]
            environment["TRITON_INTERPRET"] = "1"
            outcomes.unlink(missing_ok=True)
            run_pytest([*command, *options.beside_interpreter.split()], root, environment, seconds)
            compare_outcomes(counted, *both, read_values(outcomes))
    reasons, skips = read_reasons(output), read_skips(output)
    if not tests and not reasons and len(files) > 1:
        return {}
    outputs = (reasons, skips, output[-1000:].replace(str(root), "SUITE"))
    names = [str(file.relative_to(root)) for file in files]
    records = {name: describe_file(name, tests, *outputs) for name in names}
    if len(files) > 1:
        records = {name: found for name, found in records.items() if "output" not in found}
    for name, found in records.items():
        found |= counted.get(name, {}) | ({"cuda_kernels": True} if options.cuda_kernels else {})
    for first in list(records)[:1]:
        records[first]["seconds"] = taken
    return records


def run_pytest(command: list[str], root: Path, environment: dict[str, str], seconds: float) -> str:
    process = subprocess.Popen(
        command,
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        return process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0]


def read_values(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text()) if file.is_file() else {}


def compare_outcomes(
    files: dict[str, dict[str, Any]], checked: dict[str, Any], interpreted: dict[str, Any]
) -> None:
    """Put how each test ended, under check and in the interpreter, into its file's record."""
    for name, found in files.items():
        own = [test for test in {**checked, **interpreted} if test.startswith(f"{name}::")]
        both = {test: [checked.get(test), interpreted.get(test)] for test in own}
        found["beside the interpreter"] = both


def describe_file(
    name: str,
    tests: dict[str, Any],
    reasons: dict[str, str],
    skips: dict[str, list[str]],
    output: str,
) -> dict[str, Any]:
    """Describe a file's tests, without what is empty, or why there are none."""
    own = {
        test: {key: value for key, value in found.items() if value}
        | ({"reason": reasons[test]} if test in reasons else {})
        for test, found in tests.items()
        if test.startswith(f"{name}::")
    }
    described: dict[str, Any] = {"tests": own}
    if name in skips:
        described["skips"] = skips[name]
    if not own and name in reasons:
        described["reason"] = reasons[name]
    elif not own and name not in skips:
        described["output"] = output
    return described


def read_reasons(output: str) -> dict[str, str]:
    """Read pytest's short summary: why each test or file failed."""
    found = {}
    for line in output.splitlines():
        word, _, rest = line.partition(" ")
        if word in ("FAILED", "ERROR"):
            name, _, reason = rest.partition(" - ")
            found[name.removeprefix("collecting ")] = reason or _find_import_error(output, name)
    return found


def _find_import_error(output: str, name: str) -> str:
    """Find the error of a file that could not be collected, below its heading."""
    rest = output.partition(f"ERROR collecting {name} ")[2]
    return next((line[4:] for line in rest.splitlines() if line.startswith("E   ")), "")


def read_skips(output: str) -> dict[str, list[str]]:
    """Read why tests of a file were skipped, from lines such as `SKIPPED [2] FILE:LINE: REASON`."""
    found: dict[str, list[str]] = {}
    for line in output.splitlines():
        if line.startswith("SKIPPED "):
            place, _, reason = line.partition("] ")[2].partition(": ")
            found.setdefault(place.rpartition(":")[0], []).append(reason)
    return found


def classify_test(test: dict[str, Any]) -> str:
    if test.get("outcome") == "passed" and not test.get("launches"):
        return "passed without a launch"
    if "UnansweredName" in test.get("reason", ""):
        return "refused"
    if "TestTookTooLong" in test.get("reason", ""):
        return "too slow"
    return str(test.get("outcome", "interrupted"))


def needs_triton_alone(test: dict[str, Any]) -> bool:
    """Whether a test launched a kernel, had a launch refused, or ended badly."""
    ended_badly = classify_test(test) in ("failed", "too slow", "interrupted")
    return bool(test.get("launches") or test.get("refused_launches") or ended_badly)


def find_root(folder: Path) -> Path:
    """Find the folder of the package's repository."""
    places = [folder, *folder.parents]
    for marker in ("pyproject.toml", "python/pyproject.toml"):
        for place in places:
            if (place / marker).is_file():
                return place
    raise FileNotFoundError(f"no pyproject.toml above {folder}")


def list_files(folder: Path, selection: str) -> list[Path]:
    if not selection:
        return sorted(folder.rglob("test_*.py"))
    return [folder / name for name in Path(selection).read_text().split()]


def run_suite(
    python: str, folder: Path, selection: str, known: dict[str, Any], options: argparse.Namespace
) -> dict[str, Any]:
    deadline = time.monotonic() + options.budget
    root = find_root(folder)
    files: dict[str, dict[str, Any]] = dict(known)
    left = [
        file for file in list_files(folder, selection) if str(file.relative_to(root)) not in known
    ]
    while left and time.monotonic() < deadline:
        group = left[: options.together]
        found = run_files(python, group, root, options, deadline)
        if not found and len(group) > 1:
            found = run_files(python, group[:1], root, options, deadline)
        if not found:
            break
        for name, file_record in found.items():
            counts = Counter(classify_test(test) for test in file_record["tests"].values())
            print(f"{name}: {dict(counts)} {file_record.get('reason', '')}", flush=True)
        files |= found
        left = [file for file in left if str(file.relative_to(root)) not in found]
    return {
        **summarize_tests(test for file in files.values() for test in file["tests"].values()),
        **summarize_interpreter(files.values()),
        "not_run": [str(file.relative_to(root)) for file in left],
        "files": files,
    }


def summarize_tests(all_tests: Iterable[dict[str, Any]]) -> dict[str, Any]:
    tests = list(all_tests)
    refusals = Counter(reason for test in tests for reason in test.get("refusals", {}).values())
    reports = [report for test in tests for report in test.get("reports", [])]
    triton = [test for test in tests if needs_triton_alone(test)]
    good = [test for test in triton if classify_test(test) == "passed" or test.get("reports")]
    return {
        "outcomes": dict(Counter(map(classify_test, tests))),
        "needing Triton alone": len(triton),
        "of them passed or reported": len(good),
        "launches": sum(sum(test.get("launches", {}).values()) for test in tests),
        "kernels": len({kernel for test in tests for kernel in test.get("launches", {})}),
        "refusals": dict(refusals),
        "reports": {
            f"{report['file']}:{report['line']} {report['kind']}": report["headline"]
            for report in reports
        },
    }


def summarize_interpreter(files: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Count the tests that pass in the interpreter, under check, or in both."""
    pairs = [pair for file in files for pair in file.get("beside the interpreter", {}).values()]
    if not pairs:
        return {}
    passes = [[one is not None and one["outcome"] == "passed" for one in pair] for pair in pairs]
    both = [pair for pair, passed in zip(pairs, passes, strict=True) if all(passed)]
    return {
        "tests": len(pairs),
        "passed under check": sum(first for first, _ in passes),
        "passed in the interpreter": sum(second for _, second in passes),
        "passed in both": len(both),
        "CPU seconds of those": [
            round(sum(pair[side]["seconds"] for pair in both), 1) for side in (0, 1)
        ],
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("python")
    parser.add_argument("suites", nargs="+", metavar="NAME=TESTS")
    parser.add_argument("--limit", type=int, default=60, help="CPU seconds of a test")
    parser.add_argument("--cases", type=int, default=1, help="of a function")
    parser.add_argument("--import-mode", default="importlib", help="pytest's own")
    parser.add_argument("--sample", type=int, default=0, help="functions of a file; 0 is all")
    parser.add_argument("--grace", type=float, default=120, help="seconds past the budget")
    parser.add_argument("--budget", type=float, default=1500, help="seconds of a suite")
    parser.add_argument("--together", type=int, default=1, help="files of a process")
    parser.add_argument("--without", nargs="+", default=[], metavar="TEST")
    parser.add_argument("--cuda-kernels", action="store_true")
    parser.add_argument("--beside-interpreter", metavar="OPTIONS")
    parser.add_argument("--again", nargs="+", default=[], metavar="FILE", help="its last words")
    parser.add_argument("--known", type=Path, nargs="+", default=[], metavar="RECORD")


def measure_case(options: argparse.Namespace) -> Iterator[Result]:
    python = str(Path(options.python).absolute())  # the suites have other working folders
    known = [read_record(file) for file in options.known]
    values: dict[str, Any] = {}
    for word in options.suites:
        name, _, place = word.partition("=")
        folder, _, selection = place.partition("@")
        files = {
            file: found
            for earlier in known
            for file, found in earlier.get(name, {}).get("files", {}).items()
            if not file.endswith(tuple(options.again))
        }
        values[name] = run_suite(python, Path(folder).resolve(), selection, files, options)
        summary = {name: suite["outcomes"] for name, suite in values.items()}
        yield Result(values, summary=summary, python=python)
