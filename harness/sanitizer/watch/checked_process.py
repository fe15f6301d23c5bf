"""One checked process: its launcher, and what becomes of a report."""

from __future__ import annotations

import atexit
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import torch

from harness.core.stderr import report_to_stderr
from harness.sanitizer import gpu, plugins
from harness.sanitizer.check import gpu_facts
from harness.sanitizer.gpu import empty_memory
from harness.sanitizer.gpu.checked_launches import CheckedLauncher
from harness.sanitizer.gpu.process_reports import PROCESS_REPORTS, LaunchRecord
from harness.sanitizer.gpu.report_buffer import DeviceReport
from harness.sanitizer.watch.all_launches import COUNTING_LIBRARY, AllLaunches
from harness.sanitizer.watch.gpu_libraries import LoadedGpuLibraries
from harness.sanitizer.watch.report_files import (
    CHECKED_CUDA_VARIABLE,
    CHECKS_VARIABLE,
    FOLDER_VARIABLE,
    KernelReport,
    ReportWriter,
)
from harness.sanitizer.watch.report_poller import PeriodicTask, ReportPoller, publish_report

_COUNT_SECONDS = 1.0  # between two writes of the launch counts
_LIBRARY_SECONDS = 10.0  # between two lists of loaded libraries, which take milliseconds

_lock = threading.Lock()
_process: CheckedProcess | None = None


def ensure_launcher() -> CheckedLauncher:
    return ensure_process().launcher


def ensure_process() -> CheckedProcess:
    global _process
    with _lock:
        if _process is None:
            _process = CheckedProcess(os.environ[CHECKS_VARIABLE].split(","))
        return _process


class CheckedProcess:
    def __init__(self, options: list[str]) -> None:
        self._stops_at_first_report = "stop" in options
        self.checks = checks = tuple(word for word in options if word in gpu.ALL_CHECKS)
        if "uninitialized" in checks:
            empty_memory.patch_empty_factories()
        self._writer = ReportWriter(Path(os.environ[FOLDER_VARIABLE]))
        self._gpu_libraries = LoadedGpuLibraries(os.environ.get(CHECKED_CUDA_VARIABLE, ""))
        checked_cuda = os.environ.get(CHECKED_CUDA_VARIABLE)
        self._all_launches: AllLaunches | None = None
        if checked_cuda:
            self._all_launches = AllLaunches(Path(checked_cuda, COUNTING_LIBRARY))
        self._start_time = time.monotonic()
        self._reported: set[tuple[str, str, int, str]] = set()
        self._plugins = plugins.list_installed()
        # Servers pass kernels views of buffers that the kernels fill further: no bound is there.
        self.launcher = CheckedLauncher(checks, self.describe_work, whole_storages=True)
        self.launcher.start()
        atexit.register(self._finish)
        self._poller = ReportPoller(
            PROCESS_REPORTS,
            self._write_report,
            self._writer,
            [
                PeriodicTask("counting launches", _COUNT_SECONDS, self._write_counts),
                PeriodicTask("listing libraries", _LIBRARY_SECONDS, self._write_libraries),
            ],
        )
        self._poller.start()

    def _write_report(self, record: DeviceReport, launch: LaunchRecord) -> None:
        violation = gpu_facts.violation_from_record(record, launch)
        if violation is None:
            return
        location = violation.location
        assert location is not None
        key = (type(violation).__name__, location.file, location.line, launch.kernel)
        if key in self._reported:
            return
        self._reported.add(key)
        seconds = time.monotonic() - self._start_time
        report = KernelReport.from_violation(violation, launch.kernel, seconds)
        if launch.captured:
            captured = "in a replay of a graph; the launch above is the captured one"
            work = self.describe_work()
            now = f"replayed in {work}" if work else ""
            details = (*report.details, captured, *filter(None, [now]))
            report = replace(report, details=details)
        stop = self._write_counts if self._stops_at_first_report else None
        publish_report(report, self._writer, stop)

    def _write_counts(self) -> None:
        for kernel, count in PROCESS_REPORTS.count_dropped().items():
            self.launcher.summaries.get_summary(*kernel).dropped_reports = count
        self._writer.write_kernels(self.launcher.summaries)
        if self._all_launches is not None:
            self._writer.write_all_launches(self._all_launches.read(), self._all_launches.failure)

    def _write_libraries(self) -> None:
        self._writer.write_libraries(self._gpu_libraries.list_names())

    def _finish(self) -> None:
        try:
            torch.cuda.synchronize()
            for kernel, count in PROCESS_REPORTS.count_further_reports().items():
                self.launcher.summaries.get_summary(*kernel).further_reports = count
        except RuntimeError as error:  # a lost device: earlier reports are in the host's memory
            report_to_stderr(f"pid {os.getpid()} lost its device: {str(error).splitlines()[0]}")
        self._poller.finish()

    def describe_work(self) -> str:
        """Describe what the process works on, as its packages' plug-ins know it."""
        return ", ".join(filter(None, (plugin.describe_work() for plugin in self._plugins)))
