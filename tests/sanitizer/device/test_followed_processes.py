"""A whole process on the virtual GPU under `graphs` and `streams`: its reports and its counts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from harness.core import device, paths
from harness.patching.child_environment import STARTUP_FOLDER
from harness.sanitizer.watch import report_files

PROGRAM = Path(__file__).parent / "captured_and_freed.py"


def run_program(program: Path, checks: str, folder: Path) -> report_files.CheckSummary:
    environment = {
        **os.environ,
        device.DEVICE_VARIABLE: device.VIRTUAL,
        "PYTHONPATH": f"{STARTUP_FOLDER}:{paths.project_folder()}",
    }
    report_files.request_checks(environment, checks, folder)
    done = subprocess.run(
        [sys.executable, str(program)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return report_files.read_reports(folder, of_launches=True)


def test_a_process_reports_a_captured_buffer_that_it_replaced(tmp_path: Path) -> None:
    summary = run_program(PROGRAM, "graphs", tmp_path / "check")
    (report,) = summary.reports
    assert report.headline == "double: source is freed, and a captured graph still reads it"
    assert report.program is None
    assert report.text == "double[(1,)](buffer, target, BLOCK=8)"
    assert summary.traced is not None
    counts = summary.traced.counts
    assert (counts["graphs"], counts["captured"], counts["replays"]) == (1, 1, 1)
    assert summary.silence == ""


def test_a_process_without_a_launch_says_nothing(tmp_path: Path) -> None:
    program = tmp_path / "idle.py"
    program.write_text("import torch\n")
    summary = run_program(program, "streams", tmp_path / "check")
    assert "no process launched anything on a GPU" in summary.silence


FULL_DISK = """
from harness.sanitizer.watch.report_files import ReportWriter
def write_report(*_):
    raise OSError("no space")
ReportWriter.write_report = write_report
"""


def test_a_report_that_cannot_be_written_is_a_failure_of_the_run(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(FULL_DISK + PROGRAM.read_text())
    summary = run_program(program, "graphs", tmp_path / "check")
    assert not summary.reports
    assert "writing a report: OSError: no space" in summary.reporter_failure
