"""A run that is ended from outside keeps what it knows, also in the middle of a kernel."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.core import paths

SUITE = Path(__file__).with_name("slow_suite_to_check.py")


def start_suite(*arguments: str) -> subprocess.Popen[str]:
    folders = (paths.HARNESS_FOLDER / "startup", SUITE.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    words = [sys.executable, "-m", "pytest", "-p", "unfix_check", "-p", "no:cacheprovider", "-s"]
    return subprocess.Popen(
        [*words, f"--confcutdir={SUITE.parent}", "-c", os.devnull, str(SUITE), *arguments],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def read_until(process: subprocess.Popen[str], word: str) -> str:
    assert process.stdout is not None
    read = []
    for line in process.stdout:
        read.append(line)
        if word in line:
            return "".join(read)
    raise AssertionError("".join(read))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_a_kernel_ends_the_run_with_what_is_known(
    number: signal.Signals, tmp_path: Path
) -> None:
    record = tmp_path / "record.json"
    with start_suite(f"--sanitize-record={record}") as process:
        read_until(process, "begins")
        time.sleep(1)  # the kernel compiles and runs for minutes
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert "checked 2 launches of 2 kernels in 2 tests" in output
    assert "slowest kernels: count_for_long" in output
    outcomes = [test["outcome"] for test in json.loads(record.read_text())["tests"].values()]
    assert outcomes == ["passed", "interrupted"]


def test_a_test_has_a_limit_of_its_own() -> None:
    with start_suite("--sanitize-timeout=1") as process:
        output, _ = process.communicate(timeout=120)
    assert process.returncode == pytest.ExitCode.TESTS_FAILED, output
    assert "TestTimeout: the test took longer than 1 s (--sanitize-timeout)" in output
    assert "1 failed, 1 passed" in output
