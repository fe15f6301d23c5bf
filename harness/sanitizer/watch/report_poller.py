"""The thread that polls for reports while the program runs.

Invariant: what fails here fails the run. An error is written beside the reports, as a failure that
no later write removes, and polling goes on, so that one bad report does not silence the next. If it
cannot be written, the process ends. Example: a report whose line cannot be read leaves
`123.failures` with "handling a report of fill: KeyError: 7", and the report behind it is written.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from harness.core.stderr import report_to_stderr
from harness.sanitizer.gpu.process_reports import LaunchRecord, ProcessReports
from harness.sanitizer.gpu.report_buffer import DeviceReport
from harness.sanitizer.watch.report_files import KernelReport, ReportWriter

POLL_SECONDS = 0.002


@dataclass
class PeriodicTask:
    """What the thread does besides, each `seconds`."""

    name: str
    seconds: float
    run: Callable[[], None]
    next_time: float = 0.0


class BackgroundTasks:
    """A thread that does tasks again and again; what fails in it fails the run."""

    def __init__(self, writer: ReportWriter, tasks: list[PeriodicTask], seconds: float) -> None:
        self._writer, self._tasks, self._seconds = writer, tasks, seconds
        self._lock = threading.RLock()  # the thread and the end of the process do the same
        self._thread = threading.Thread(target=self._run_forever, name="unfix check", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Run the tasks once more, at the end of the process."""
        if not self._thread.is_alive():
            self.fail("the thread that polls for reports ended before the process")
        with self._lock:
            for task in self._tasks:
                self._run_task(task)

    def _run_forever(self) -> None:
        while True:
            with self._lock:
                self._run_due_tasks()
            time.sleep(self._seconds)

    def _run_due_tasks(self) -> None:
        now = time.monotonic()
        for task in self._tasks:
            if now >= task.next_time:
                task.next_time = now + task.seconds
                self._run_task(task)

    def _run_task(self, task: PeriodicTask) -> None:
        with self.record_failure(task.name):
            task.run()

    @contextmanager
    def record_failure(self, action: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            first_line = (str(error).splitlines() or [""])[0]
            self.fail(f"{action}: {type(error).__name__}: {first_line}", traceback.format_exc())

    def fail(self, failure: str, details: str = "") -> None:
        try:
            with self._lock:
                is_new = self._writer.write_failure(failure)
        except OSError as error:
            report_to_stderr(
                f"pid {os.getpid()} ends, since its reports cannot be written ({error}): {failure}"
            )
            os._exit(1)
        if is_new:
            report_to_stderr(f"pid {os.getpid()}: the reporter of checks failed: {failure}")
            if details:
                report_to_stderr(details)


class ReportPoller(BackgroundTasks):
    """The same thread, which also reads the reports of a GPU's kernels."""

    def __init__(
        self,
        reports: ProcessReports,
        handle_report: Callable[[DeviceReport, LaunchRecord], None],
        writer: ReportWriter,
        tasks: list[PeriodicTask],
    ) -> None:
        super().__init__(writer, tasks, POLL_SECONDS)
        self._reports, self._handle_report = reports, handle_report
        self._waiting: list[tuple[DeviceReport, LaunchRecord]] = []  # for their launch to return

    def _run_due_tasks(self) -> None:
        self.poll()
        super()._run_due_tasks()

    def poll(self) -> None:
        """Handle the reports since the last poll."""
        with self._lock, self.record_failure("reading reports"):
            reports = [*self._waiting, *self._reports.read_new_reports()]
            self._waiting = [each for each in reports if each[1].compiled_kernel is None]
            for report, launch in reports:
                if launch.compiled_kernel is not None:
                    with self.record_failure(f"handling a report of {launch.kernel}"):
                        self._handle_report(report, launch)

    def finish(self) -> None:
        """Poll once more, at the end of the process, and run the tasks."""
        self.poll()
        super().finish()
        for _, launch in self._waiting:
            self.fail(f"a report of {launch.kernel}, whose launch did not return")


def publish_report(
    report: KernelReport, writer: ReportWriter, stop: Callable[[], None] | None = None
) -> None:
    """Write a report and print it; with `stop`, call that and end the process."""
    writer.write_report(report)
    report_to_stderr(f"pid {os.getpid()}: {report}")
    if stop is not None:
        stop()
        report_to_stderr(f"pid {os.getpid()} stops at its first report")
        os._exit(1)
