"""The checks of launches in one process of `exec --check`: its reports and counts, as files."""

from __future__ import annotations

import atexit
import os
import threading
import time
from dataclasses import asdict
from pathlib import Path

from harness.kernels.check.violations import Violation
from harness.kernels.launches import LAUNCH_CHECKS
from harness.kernels.launches.launch_checks import start_tracing
from harness.kernels.launches.launch_tracer import LaunchTracer
from harness.kernels.watch.report_files import (
    CHECKS_VARIABLE,
    FOLDER_VARIABLE,
    KernelReport,
    ReportWriter,
)
from harness.patching.bootstrap import report_to_stderr

_COUNT_SECONDS = 1.0  # between two writes of the counts

_process: _TracedProcess | None = None


def start() -> None:
    """Check this process's launches, if its environment requests it; once."""
    global _process
    options = os.environ.get(CHECKS_VARIABLE, "").split(",")
    checks = [word for word in LAUNCH_CHECKS if word in options]
    if checks and _process is None:
        _process = _TracedProcess(checks, "stop" in options)


class _TracedProcess:
    def __init__(self, checks: list[str], stops_at_first_report: bool) -> None:
        self._stops_at_first_report = stops_at_first_report
        self._start_time = time.monotonic()
        self._open_files()
        self._tracer: LaunchTracer = start_tracing(checks, self._write_report)
        os.register_at_fork(after_in_child=self._open_files)
        atexit.register(self._finish)

    def _open_files(self) -> None:
        """Write to files of this process, in a fork too: the counts of its parent are not its."""
        self._writer = ReportWriter(Path(os.environ[FOLDER_VARIABLE]))
        thread = threading.Thread(target=self._write_counts_forever, name="unfix launches")
        thread.daemon = True
        thread.start()

    def _write_report(self, violation: Violation) -> None:
        location = violation.location
        report = KernelReport(
            type(violation).__name__,
            location.kernel if location is not None else "",
            location.file if location is not None else "?",
            location.line if location is not None else 0,
            location.text if location is not None else "",
            None,
            violation.headline,
            violation.details,
            os.getpid(),
            round(time.monotonic() - self._start_time, 3),
        )
        self._writer.write_report(report)
        report_to_stderr(f"pid {os.getpid()}: {report}")
        if self._stops_at_first_report:
            self._write_counts()
            report_to_stderr(f"pid {os.getpid()} stops at its first report")
            os._exit(1)

    def _write_counts_forever(self) -> None:
        while True:
            time.sleep(_COUNT_SECONDS)
            self._write_counts()

    def _write_counts(self) -> None:
        self._writer.write_launches(asdict(self._tracer.counts))

    def _finish(self) -> None:
        self._tracer.finish()
        self._write_counts()
