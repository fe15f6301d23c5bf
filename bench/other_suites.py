"""Other packages' test suites under check on this CPU: what passes, is reported, is refused, why.

    python bench/other_suites.py PYTHON NAME=TESTS… --record FILE [--limit 60] [--budget 1500]
    python bench/other_suites.py .releases/0.5.23/bin/python \
        SGLang=CHECKOUT/test/registered@bench/selection/sglang_registered.txt --record FILE

PYTHON has torch, Triton, pytest and the packages under test. Each file of tests is a process of its
own (`-p unfix_check --unfix-device=virtual`); `@LIST` names a file with the paths of those to run.
Of each test function the smallest case runs, by the product of its numbers, as upstream wrote it;
a test that takes more than the limit is ended.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness.cli import run_output
from harness.core import machine
from harness.patching.child_environment import STARTUP_FOLDER, ChildEnvironment
from harness.store.record_files import write_record

_SELECTION = Path(__file__).parent / "selection"  # alone: it goes on the path of a suite


def run_file(python: str, file: Path, root: Path, limit: int, deadline: float) -> dict[str, Any]:
    """Run a file of tests; return its record, with what the process said if it left none."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.json"
        environment = ChildEnvironment({"OMP_NUM_THREADS": "1", "SUITE_LIMIT": str(limit)})
        environment.use_checkout()
        environment.add_python_path(STARTUP_FOLDER, _SELECTION, root, root / "src")
        words = ["-p", "unfix_check", "-p", "suite_selection", "-p", "no:cacheprovider", "-q"]
        words += ["--unfix-device=virtual", f"--unfix-record={record}", str(file)]
        began = time.monotonic()
        process = subprocess.Popen(
            [python, "-m", "pytest", *words],
            cwd=root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        tests = json.loads(record.read_text())["tests"] if record.is_file() else {}
        found = {"seconds": round(time.monotonic() - began, 1), "tests": tests}
        if not tests:
            found["output"] = output[-1000:].replace(str(root), "SUITE")
        return found


def classify(test: dict[str, Any]) -> str:
    if test["outcome"] == "passed" and not test["launches"]:
        return "passed without a launch"
    return str(test["outcome"])


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
    python: str, folder: Path, selection: str, limit: int, budget: float
) -> dict[str, Any]:
    deadline = time.monotonic() + budget
    files, left = {}, []
    root = find_root(folder)
    for file in list_files(folder, selection):
        name = str(file.relative_to(root))
        if time.monotonic() > deadline:
            left.append(name)
            continue
        files[name] = run_file(
            python, file, root, limit, min(deadline, time.monotonic() + 8 * limit)
        )
        counts = Counter(classify(test) for test in files[name]["tests"].values())
        print(f"{name}: {dict(counts)} {files[name]['seconds']} s", flush=True)
    tests = {name: test for file in files.values() for name, test in file["tests"].items()}
    return {
        "outcomes": dict(Counter(map(classify, tests.values()))),
        "launches": sum(sum(test["launches"].values()) for test in tests.values()),
        "kernels": len({kernel for test in tests.values() for kernel in test["launches"]}),
        "refusals": dict(
            Counter(reason for test in tests.values() for reason in test["refusals"].values())
        ),
        "reports": {
            f"{report['file']}:{report['line']} {report['kind']}": report["headline"]
            for test in tests.values()
            for report in test["reports"]
        },
        "not_run": left,
        "files": files,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python")
    parser.add_argument("suites", nargs="+", metavar="NAME=TESTS")
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=60, help="seconds of a test")
    parser.add_argument("--budget", type=float, default=1500, help="seconds of a suite")
    arguments = parser.parse_args()
    record: dict[str, Any] = {"machine": machine.collect_machine_facts(arguments.python)}
    for word in arguments.suites:
        name, _, place = word.partition("=")
        folder, _, selection = place.partition("@")
        record[name] = run_suite(
            arguments.python, Path(folder).resolve(), selection, arguments.limit, arguments.budget
        )
        print(name, record[name]["outcomes"])
    text = json.dumps(record, indent=1).replace(str(Path(arguments.python).parents[1]), "PYTHON")
    text = run_output.hide_local_paths(text)
    write_record(arguments.record, text + "\n")


if __name__ == "__main__":
    main()
