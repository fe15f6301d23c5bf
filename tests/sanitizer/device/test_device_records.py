"""What processes counted on the virtual device is read from their files, also of killed ones."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.core import child_process
from harness.sanitizer.device.record import DeviceRecord, RecordFile, read_records
from harness.sanitizer.device.refusals import UnansweredName


@pytest.fixture
def device_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeviceRecord:
    """A record of this process, in place of that of all tests."""
    new_record = DeviceRecord()
    new_record.write_to(tmp_path)
    monkeypatch.setattr("harness.sanitizer.device.refusals.RECORD", new_record)
    return new_record


def count_norms(new_record: DeviceRecord, calls: int) -> None:
    for _ in range(calls):
        new_record.count_stand_in("sgl_kernel.norm")


def end_by_kill(function: Callable[[], object]) -> None:
    def run_and_die() -> None:
        function()
        os.kill(os.getpid(), signal.SIGKILL)

    assert child_process.fork_process(run_and_die).reap() == -signal.SIGKILL


def test_a_fork_counts_its_own_calls_and_a_killed_one_loses_none(
    device_record: DeviceRecord, tmp_path: Path
) -> None:
    count_norms(device_record, 3)
    end_by_kill(lambda: count_norms(device_record, 5))
    count_norms(device_record, 1)
    assert read_records(tmp_path).stand_ins == {"sgl_kernel.norm": 9}


def test_a_refusal_that_a_killed_process_caught_is_counted(
    device_record: DeviceRecord, tmp_path: Path
) -> None:
    end_by_kill(lambda: [UnansweredName("no fly") for _ in range(2)])
    assert read_records(tmp_path).refusals == {"no fly": 2}


def test_more_names_than_a_file_has_go_into_the_next(
    device_record: DeviceRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RecordFile, "SIZE", 3)
    for number in range(8):
        for _ in range(number + 1):
            device_record.count_import(f"p.{number}")
    assert read_records(tmp_path).imports == {f"p.{n}": n + 1 for n in range(8)}
    assert len(list(tmp_path.glob("*.counts"))) == 3


def test_a_name_that_a_running_process_has_half_written_waits(
    device_record: DeviceRecord, tmp_path: Path
) -> None:
    count_norms(device_record, 2)
    (file,) = tmp_path.glob("*.device")
    with open(file, "a") as names:
        names.write('["stand_ins", "sgl_ker')
    assert read_records(tmp_path).as_dict() == device_record.as_dict()


def test_a_second_folder_gets_what_comes_later(device_record: DeviceRecord, tmp_path: Path) -> None:
    count_norms(device_record, 2)
    device_record.clear()
    device_record.write_to(tmp_path / "later")
    count_norms(device_record, 4)
    assert read_records(tmp_path / "later").stand_ins == device_record.stand_ins


def test_the_lines_name_each_operator_with_its_calls() -> None:
    new_record = DeviceRecord()
    count_norms(new_record, 2)
    new_record.count_kernel_call("norm")
    new_record.count_refusal("no stand-in computes sgl_kernel.fly()")
    assert list(new_record.describe()) == [
        "1 operator of CUDA binaries had stand-ins, 2 calls: sgl_kernel.norm 2",
        "1 function of CUDA C++ ran, 1 call: norm 1",
        "refused 1 time: no stand-in computes sgl_kernel.fly()",
    ]
    assert list(DeviceRecord().describe()) == []
