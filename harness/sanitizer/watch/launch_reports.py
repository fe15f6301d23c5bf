"""The checks of launches in one process of `exec --check`: its reports and counts, as files."""

from __future__ import annotations

import atexit
import os
import time
from dataclasses import asdict, replace
from pathlib import Path

from harness.sanitizer.launches import LAUNCH_CHECKS
from harness.sanitizer.launches.launch_checks import start_tracing
from harness.sanitizer.launches.launch_tracer import LaunchTracer
from harness.sanitizer.violations.exceptions import Violation
from harness.sanitizer.watch.report_files import (
    CHECKS_VARIABLE,
    FOLDER_VARIABLE,
    KernelReport,
    ReportWriter,
)
from harness.sanitizer.watch.report_poller import BackgroundTasks, PeriodicTask, publish_report

_COUNT_SECONDS = 1.0  # between two writes of the counts

_process: _TracedProcess | None = None


def start_checks() -> None:
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
        self._tasks.start()
        os.register_at_fork(after_in_child=self._continue_in_fork)
        atexit.register(self._finish)

    def _open_files(self) -> None:
        """Write to files of this process, in a fork too: the counts of its parent are not its."""
        self._writer = ReportWriter(Path(os.environ[FOLDER_VARIABLE]))
        count = PeriodicTask("counting launches", _COUNT_SECONDS, self._write_counts)
        self._tasks = BackgroundTasks(self._writer, [count], _COUNT_SECONDS)

    def _continue_in_fork(self) -> None:
        self._open_files()
        self._tasks.start()

    def _write_report(self, violation: Violation) -> None:
        kernel = violation.location.kernel if violation.location is not None else ""
        seconds = time.monotonic() - self._start_time
        report = replace(KernelReport.from_violation(violation, kernel, seconds), program=None)
        stop = self._write_counts if self._stops_at_first_report else None
        with self._tasks.record_failure("writing a report"):  # the launch goes on
            publish_report(report, self._writer, stop)

    def _write_counts(self) -> None:
        self._writer.write_launches(asdict(self._tracer.counts))

    def _finish(self) -> None:
        with self._tasks.record_failure("confirming reports at the end"):
            self._tracer.finish()
        self._tasks.finish()
