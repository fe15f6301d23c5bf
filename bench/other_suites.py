"""Other packages' test suites under check on this CPU: what passes, is reported, is refused, why.

    python bench/other_suites.py PYTHON NAME=TESTS… --record FILE [--limit 60] [--budget 1500]
    python bench/other_suites.py .releases/0.5.23/bin/python \
        SGLang=CHECKOUT/test/registered@bench/selection/sglang_registered.txt --record FILE

PYTHON has torch, Triton, pytest and the packages under test. Each file of tests is a process of its
own (`-p unfix_check --unfix-device=virtual`); with `--together` several are one, and each is run
alone if that leaves no record. `@LIST` names a file with the paths of those to run.
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


def run_files(
    python: str, files: list[Path], root: Path, limit: int, deadline: float
) -> dict[str, dict[str, Any]]:
    """Run files of tests in one process; return the record of each, or what the process said."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.json"
        environment = ChildEnvironment(
            {"OMP_NUM_THREADS": "1", "SUITE_LIMIT": str(limit), "COLUMNS": "300"}
        )
        environment.use_checkout()
        environment.add_python_path(STARTUP_FOLDER, _SELECTION, root, root / "src")
        words = ["-p", "unfix_check", "-p", "suite_selection", "-p", "no:cacheprovider", "-q"]
        words += ["--unfix-device=virtual", f"--unfix-record={record}", "--tb=short", "-rfEs"]
        words += ["--import-mode=importlib", "--continue-on-collection-errors", f"--rootdir={root}"]
        began = time.monotonic()
        process = subprocess.Popen(
            [python, "-m", "pytest", *words, *map(str, files)],
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
        seconds = round(time.monotonic() - began, 1)
        tests = json.loads(record.read_text())["tests"] if record.is_file() else {}
    reasons, skips = read_reasons(output), read_skips(output)
    records: dict[str, dict[str, Any]] = {}
    for file in files:
        name = str(file.relative_to(root))
        own = {test: found for test, found in tests.items() if test.startswith(f"{name}::")}
        for test, found in own.items():
            if test in reasons:
                found["reason"] = reasons[test].replace(str(root), "SUITE")
        records[name] = {"tests": own}
        if name in skips:
            records[name]["skips"] = skips[name]
        if not own and name in reasons:
            records[name]["reason"] = reasons[name].replace(str(root), "SUITE")
    if tests or reasons:
        next(iter(records.values()))["seconds"] = seconds
    else:
        next(iter(records.values()))["output"] = output[-1000:].replace(str(root), "SUITE")
    return records


def read_reasons(output: str) -> dict[str, str]:
    """Read pytest's short summary: why each test or file failed."""
    found = {}
    for line in output.splitlines():
        word, _, rest = line.partition(" ")
        if word in ("FAILED", "ERROR"):
            name, _, reason = rest.partition(" - ")
            found[name] = reason
    return found


def read_skips(output: str) -> dict[str, list[str]]:
    """Read why tests of a file were skipped, from lines such as `SKIPPED [2] FILE:LINE: REASON`."""
    found: dict[str, list[str]] = {}
    for line in output.splitlines():
        if line.startswith("SKIPPED "):
            place, _, reason = line.partition("] ")[2].partition(": ")
            found.setdefault(place.rpartition(":")[0], []).append(reason)
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
    python: str, folder: Path, selection: str, limit: int, budget: float, together: int
) -> dict[str, Any]:
    deadline = time.monotonic() + budget
    files: dict[str, dict[str, Any]] = {}
    left: list[str] = []
    root = find_root(folder)
    selected = list_files(folder, selection)
    for group in (selected[at : at + together] for at in range(0, len(selected), together)):
        if time.monotonic() > deadline:
            left += [str(file.relative_to(root)) for file in group]
            continue
        found = run_files(python, group, root, limit, min(deadline, time.monotonic() + 900))
        if len(group) > 1 and not any(file["tests"] for file in found.values()):
            for file in group:
                end = min(deadline, time.monotonic() + 8 * limit)
                found |= run_files(python, [file], root, limit, end)
        for name, file_record in found.items():
            files[name] = file_record
            counts = Counter(classify(test) for test in file_record["tests"].values())
            print(f"{name}: {dict(counts)} {file_record.get('reason', '')}", flush=True)
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
    parser.add_argument("--together", type=int, default=1, help="files of a process")
    arguments = parser.parse_args()
    python = str(Path(arguments.python).absolute())  # the suites have other working folders
    record: dict[str, Any] = {"machine": machine.collect_machine_facts(python)}
    for word in arguments.suites:
        name, _, place = word.partition("=")
        folder, _, selection = place.partition("@")
        record[name] = run_suite(
            python,
            Path(folder).resolve(),
            selection,
            arguments.limit,
            arguments.budget,
            arguments.together,
        )
        print(name, record[name]["outcomes"])
    text = json.dumps(record, indent=1).replace(str(Path(python).parents[1]), "PYTHON")
    text = run_output.hide_local_paths(text)
    write_record(arguments.record, text + "\n")


if __name__ == "__main__":
    main()
