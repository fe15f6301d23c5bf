"""All launches of a process under check on this CPU: reports and counts go to the run's files.

A pytest process has the plugin (`pytest_plugin`), whose sessions end with each test. Any other
process has one session from its first launch on.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from harness.core import device
from harness.core.stderr import report_to_stderr
from harness.sanitizer.check import interrupts
from harness.sanitizer.check.declarations import Check
from harness.sanitizer.check.launch_log import KernelLaunch
from harness.sanitizer.check.options import MAX_REPORTS, CheckOptions
from harness.sanitizer.cpu.arithmetic import Arithmetic
from harness.sanitizer.gpu.kernel_summaries import KernelSummaries
from harness.sanitizer.violations.exceptions import Violation
from harness.sanitizer.violations.kinds import CHECK_NAMES
from harness.sanitizer.watch.report_files import (
    CHECKS_VARIABLE,
    FOLDER_VARIABLE,
    KernelReport,
    ReportWriter,
)

_WRITE_SECONDS = 1.0  # between two writes of the counts


class HostCheckFiles:
    """Counts launches and writes reports, if the process has a folder for them."""

    def __init__(self) -> None:
        folder = os.environ.get(FOLDER_VARIABLE)
        self._writer = ReportWriter(Path(folder)) if folder else None
        self.summaries = KernelSummaries()
        self._start_time = time.monotonic()
        self._next_write = 0.0

    def count_launch(self, launch: KernelLaunch) -> None:
        """Count a launch; the counts are on disk within a second, whatever ends the process."""
        summary = self.summaries.count_launch(launch.kernel, launch.place)
        if launch.refusal:
            summary.count_refusal(launch.refusal_reason, captured=False)
        if time.monotonic() >= self._next_write:
            self.write_counts()

    def write_violation(self, violation: Violation) -> KernelReport:
        place = violation.location
        kernel = place.kernel if place else ""
        report = KernelReport.from_violation(violation, kernel, time.monotonic() - self._start_time)
        if self._writer is not None:
            self._writer.write_report(report)
        return report

    def write_counts(self) -> None:
        self._next_write = time.monotonic() + _WRITE_SECONDS
        if self._writer is not None:
            self._writer.write_kernels(self.summaries)


def make_check(device_name: str, options: CheckOptions) -> Check:
    if device_name == device.VIRTUAL:
        from harness.sanitizer.check.virtual_check import VirtualCheck

        return VirtualCheck(options)
    return Check(options)


@contextlib.contextmanager
def check_process() -> Iterator[None]:
    """Check every launch from here on, as the environment requests."""
    words = os.environ[CHECKS_VARIABLE].split(",")
    options = CheckOptions(
        Arithmetic.CLOSE,
        tuple(word for word in words if word in CHECK_NAMES),
        1 if "stop" in words else MAX_REPORTS,
    )
    files = HostCheckFiles()
    check = make_check(device.get_device(), options)

    def report_violation(violation: Violation) -> None:
        report = files.write_violation(violation)
        report_to_stderr(f"pid {os.getpid()}: {report}")
        if "stop" in words:
            files.write_counts()
            report_to_stderr(f"pid {os.getpid()} stops at its first report")
            os._exit(1)

    check.launches.observers.append(files.count_launch)
    check.launches.violation_observers.append(report_violation)
    atexit.register(files.write_counts)
    interrupts.stop_kernels_at(signal.SIGINT)
    with contextlib.ExitStack() as stack:
        check.open(stack)
        yield
