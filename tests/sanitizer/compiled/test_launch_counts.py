"""What a checked process counts and reports: the host's half of `exec --check`, without a GPU."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from calling import PATIENCE_SECONDS

from harness.sanitizer.gpu import checked_launches, compiler_hooks, process_reports
from harness.sanitizer.gpu.checked_launches import CheckedLauncher
from harness.sanitizer.gpu.process_reports import LaunchRecord, ProcessReports
from harness.sanitizer.gpu.report_buffer import DeviceReport
from harness.sanitizer.watch import report_poller
from harness.sanitizer.watch.report_files import ReportWriter, read_reports
from harness.sanitizer.watch.report_poller import PeriodicTask, ReportPoller

Patch = pytest.MonkeyPatch


def make_kernel() -> Any:
    @triton.jit
    def fill(target, COUNT: tl.constexpr):
        tl.store(target + tl.arange(0, COUNT), 1)

    return fill


@triton.jit
def fill(target, COUNT: tl.constexpr):
    tl.store(target + tl.arange(0, COUNT), 2)


class FakeBuffer:
    """A device's reports, and its tables."""

    def __init__(self) -> None:
        self.reports: list[DeviceReport] = []
        self.table_count = 0

    def allocate_table(self) -> int:
        self.table_count += 1
        return 4096 * self.table_count

    def upload_storage_table(self) -> None:
        """The device has none."""

    def has_reports(self) -> bool:
        return bool(self.reports)

    def read_new_reports(self) -> list[DeviceReport]:
        reports, self.reports = self.reports, []
        return reports


def make_report(launch: int, table: int = 0) -> DeviceReport:
    return DeviceReport(launch, 0, 0, 0, table, (0, 0, 0), (0, 0))


class FakeDevice:
    """A device on which launches return what Triton would have compiled for them."""

    def __init__(self) -> None:
        self.capturing = False
        self.metadata: dict[str, Any] | None = {}
        self.buffers: list[FakeBuffer] = []

    def make_buffer(self, device: int) -> FakeBuffer:
        self.buffers.append(FakeBuffer())
        return self.buffers[-1]

    def run(self, kernel: Any, *args: Any, **options: Any) -> Any:
        metadata = {} if self.metadata is None else {compiler_hooks.METADATA_KEY: self.metadata}
        return SimpleNamespace(metadata=SimpleNamespace(**metadata))


@pytest.fixture
def device(monkeypatch: Patch) -> FakeDevice:
    fake = FakeDevice()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: fake.capturing)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(process_reports, "ReportBuffer", fake.make_buffer)
    monkeypatch.setattr(checked_launches, "PROCESS_REPORTS", ProcessReports())
    monkeypatch.setattr(compiler_hooks, "build_checked_kernel", lambda kernel, _: kernel)
    return fake


@pytest.fixture
def launcher(device: FakeDevice) -> CheckedLauncher:
    checked_launcher: Any = CheckedLauncher()
    checked_launcher._original_run = device.run
    return checked_launcher  # type: ignore[no-any-return]


def run_launcher(launcher: CheckedLauncher, kernel: Any, **options: Any) -> None:
    args = (torch.zeros(8, dtype=torch.int32), 8)
    launcher.run(kernel, args, (1,), warmup=False, options=options)


def test_a_refusal_in_a_capture_stays_behind_checked_launches(
    launcher: CheckedLauncher, device: FakeDevice
) -> None:
    """The graph replays the launch unchecked, as often as the program likes."""
    kernel = make_kernel()
    device.capturing = True
    run_launcher(launcher, kernel)
    device.capturing = False
    run_launcher(launcher, kernel)
    run_launcher(launcher, kernel)
    [summary] = launcher.summaries
    assert (summary.launches, summary.checked_launches) == (3, 2)
    assert summary.captured_refusals == {"there was no room for its reports": 1}


def test_a_refused_specialization_stays_beside_checked_ones(
    launcher: CheckedLauncher, device: FakeDevice
) -> None:
    kernel = make_kernel()
    run_launcher(launcher, kernel)
    device.metadata = {"refused": "it uses tt.descriptor_load"}
    run_launcher(launcher, kernel)
    device.metadata = {"unchecked": {"nobody knows its memory": 2}}
    run_launcher(
        launcher, kernel
    )  # of the first form again: its kernel counts as refused from here on
    [summary] = launcher.summaries
    assert (summary.launches, summary.checked_launches) == (3, 1)
    assert summary.refusals == {"it uses tt.descriptor_load": 2}
    assert summary.captured_refusals == {}


def test_every_way_past_the_checks_counts(launcher: CheckedLauncher, device: FakeDevice) -> None:
    device.metadata = None
    run_launcher(launcher, make_kernel())
    launcher.run(SimpleNamespace(fn=fill.fn), (), (1,), warmup=False, options={})
    assert [list(summary.refusals) for summary in launcher.summaries] == [
        ["it was compiled past the checks"],
        ["it is a SimpleNamespace"],
    ]


def test_two_kernels_of_one_name_have_two_summaries(
    launcher: CheckedLauncher, device: FakeDevice
) -> None:
    run_launcher(launcher, make_kernel())
    device.metadata = {"refused": "it is too large"}
    run_launcher(launcher, fill)
    assert [(each.name, each.checked_launches) for each in launcher.summaries] == [
        ("fill", 1),
        ("fill", 0),
    ]


def test_a_form_with_fewer_unchecked_accesses_hides_none(
    launcher: CheckedLauncher, device: FakeDevice
) -> None:
    kernel = make_kernel()
    for count in (2, 3, 0):
        device.metadata = {"unchecked": {"nobody knows its memory": count} if count else {}}
        run_launcher(launcher, kernel)
    [summary] = launcher.summaries
    assert summary.unchecked == {"nobody knows its memory": 3}


def test_a_launch_without_its_race_check_is_counted(device: FakeDevice) -> None:
    launcher: Any = CheckedLauncher(checks=("bounds", "races"))
    launcher._original_run = device.run
    run_launcher(launcher, make_kernel(), launch_pdl=True)
    [summary] = launcher.summaries
    assert (summary.checked_launches, sum(summary.skipped_checks.values())) == (1, 1)


def record_launches(reports: ProcessReports, count: int, compiled: Any = True) -> int:
    for _ in range(count):
        record = LaunchRecord("fill", (), {}, captured=False, server_phase="")
        record.compiled_kernel = compiled
        number = reports.remember_launch(record)
    return number


def test_a_report_of_a_forgotten_launch_is_counted(device: FakeDevice, monkeypatch: Patch) -> None:
    monkeypatch.setattr(process_reports, "_MAX_REMEMBERED_LAUNCHES", 3)
    reports = ProcessReports()
    reports.allocate_table(0, "fill", "a.py:1")
    reports.allocate_table(0, "drain", "b.py:2")
    record_launches(reports, 4)
    device.buffers[0].reports = [make_report(1, table=1), make_report(2), make_report(1, table=1)]
    assert [report.launch for report, _ in reports.read_new_reports()] == [2]
    assert reports.count_dropped() == {("drain", "b.py:2"): 2}


class Poll:
    """A poller without a thread, its device, and what it handled."""

    def __init__(self, folder: Path, device: FakeDevice) -> None:
        self.reports = ProcessReports()
        self.reports.allocate_table(0, "fill", "a.py:1")
        self.buffer, self.folder = device.buffers[0], folder
        self.handled: list[int] = []
        self.tasks: list[PeriodicTask] = []
        self.poller = ReportPoller(self.reports, self.handle, ReportWriter(folder), self.tasks)

    def handle(self, report: DeviceReport, _: LaunchRecord) -> None:
        if report.site == 7:
            raise KeyError(report.site)
        self.handled.append(report.launch)

    @property
    def failures(self) -> list[str]:
        return [each.partition(": ")[2] for each in read_reports(self.folder).failures]


@pytest.fixture
def poll(tmp_path: Path, device: FakeDevice) -> Iterator[Poll]:
    return Poll(tmp_path, device)  # type: ignore[return-value]


def test_a_report_that_cannot_be_handled_fails_the_run_and_silences_none(poll: Poll) -> None:
    record_launches(poll.reports, 3)
    bad = DeviceReport(2, 0, 0, 7, 0, (0, 0, 0), (0, 0))
    poll.buffer.reports = [make_report(1), bad, make_report(3)]
    poll.poller.poll()
    poll.buffer.reports = [make_report(2)]
    poll.poller.poll()
    assert poll.handled == [1, 3, 2]
    assert poll.failures == ["handling a report of fill: KeyError: 7"]


def test_the_thread_outlives_a_failure_of_its_own(poll: Poll, monkeypatch: Patch) -> None:
    ran = threading.Event()

    def count() -> None:
        ran.set()
        raise RuntimeError("dictionary changed size during iteration")

    poll.tasks.append(PeriodicTask("counting launches", 0.0, count))
    monkeypatch.setattr(report_poller, "POLL_SECONDS", 0.001)
    poll.poller.start()
    assert ran.wait(PATIENCE_SECONDS)
    record_launches(poll.reports, 1)
    poll.buffer.reports = [make_report(1)]
    poll.poller.finish()
    assert poll.handled == [1]
    assert poll.failures == [
        "counting launches: RuntimeError: dictionary changed size during iteration"
    ]


def test_a_failure_of_two_threads_at_once_is_written_once(poll: Poll, monkeypatch: Patch) -> None:
    opened = Path.open

    def open_slowly(path: Path, *mode: str) -> Any:
        time.sleep(0.1)
        return opened(path, *mode)

    monkeypatch.setattr(Path, "open", open_slowly)
    other = threading.Thread(target=poll.poller.fail, args=["counting launches"])
    other.start()
    poll.poller.fail("counting launches")
    other.join()
    monkeypatch.undo()
    assert poll.failures == ["counting launches"]


def test_a_thread_that_is_gone_is_a_failure(poll: Poll) -> None:
    poll.poller.finish()
    assert poll.failures == ["the thread that polls for reports ended before the process"]


def test_a_report_waits_for_its_launch_to_return_and_for_no_longer_than_the_process(
    poll: Poll,
) -> None:
    """A launch that loses the device never returns; the poll behind it must."""
    record_launches(poll.reports, 2, compiled=None)
    poll.buffer.reports = [make_report(1), make_report(2)]
    poll.poller.poll()
    assert poll.handled == []
    poll.reports._launch_records[2].compiled_kernel = object()
    poll.poller.finish()
    assert poll.handled == [2]
    assert "a report of fill, whose launch did not return" in poll.failures


def test_a_process_whose_failure_cannot_be_written_ends(poll: Poll, monkeypatch: Patch) -> None:
    class Ended(BaseException):
        """In place of the end of the process."""

    def end(code: int) -> None:
        raise Ended(code)

    def write_failure(_: str) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(poll.poller._writer, "write_failure", write_failure)
    with pytest.raises(Ended, match="1"):
        poll.poller.finish()
