"""A compiled operator that changes bytes behind a tensor is named with the argument and the byte.

The source of events is a card's; the memory behind a tensor is this test's own.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from traced_card import trace_card

from harness.sanitizer.device import memory
from harness.sanitizer.launches import card_zones, zone_check
from harness.sanitizer.launches.card_source import CardClocks
from harness.sanitizer.launches.launch_tracer import LaunchTracer
from harness.sanitizer.launches.zone_check import MAX_SITES, GuardZoneCheck
from harness.sanitizer.violations.exceptions import OutOfBounds, Violation
from harness.sanitizer.watch import launch_reports
from harness.sanitizer.watch.report_files import FOLDER_VARIABLE, read_reports
from harness.sanitizer.watch.report_poller import BackgroundTasks

ZONE = 24  # bytes


class OwnZones:
    """Each tensor of `make` has bytes behind it; no other one has."""

    def __init__(self) -> None:
        self._kept: list[torch.Tensor] = []
        self._starts: set[int] = set()
        self.result_devices: list[int] = []

    def make(self, count: int, device: int = 0) -> torch.Tensor:
        self._kept.append(torch.zeros(4 * count + ZONE, dtype=torch.uint8))
        start = self._kept[-1].data_ptr()
        self._starts.add(start)
        return memory.make_unowned((start, 4 * count, device), (torch.int32, 0, (count,), (1,)))

    def find_zone(self, storage: torch.UntypedStorage) -> torch.Tensor | None:
        if storage.data_ptr() not in self._starts:
            return None
        end = storage.data_ptr() + storage.nbytes()
        place = end, ZONE, storage.device.index
        return memory.make_unowned(place, (torch.uint8, 0, (ZONE,), (1,)))

    def allocate_results(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        host = torch.zeros(MAX_SITES, dtype=torch.int32)
        self.result_devices.append(device.index)
        return host, memory.relabel_as_device(host, device.index)


@pytest.fixture(scope="module")
def operators() -> Iterator[object]:
    """`fill` writes so many bytes from the start of `out` on; `join` allocates its result."""
    library = torch.library.Library("guard_zone_test", "DEF")
    library.define("fill(Tensor(a!) out, Tensor source, int size) -> ()")
    library.define("join(Tensor one, Tensor other) -> Tensor")

    def fill(out: torch.Tensor, source: torch.Tensor, size: int) -> None:
        ctypes.memset(out.data_ptr(), 7, size)

    library.impl("fill", fill, "CUDA")
    library.impl("join", lambda one, other: torch.cat((one, other)), "CUDA")
    yield torch.ops.guard_zone_test
    library._destroy()


@pytest.fixture
def zones() -> OwnZones:
    return OwnZones()


def find_reports(zones: OwnZones, program: Callable[[], None]) -> list[Violation]:
    reports: list[Violation] = []
    check = GuardZoneCheck(zones, reports.append)
    with trace_card((), reports.append, check):
        program()
    check.read()  # a second time reports nothing again
    return reports


@pytest.mark.parametrize(("past", "nearest"), [(1, 0), (24, 0), (0, None)])
def test_bytes_behind_an_argument_are_reported_once(
    operators: object, zones: OwnZones, past: int, nearest: int | None
) -> None:
    out, source = zones.make(10), zones.make(3)

    def program() -> None:
        for _ in range(3):
            torch.ops.guard_zone_test.fill(out, source, 40 + past)

    reports = find_reports(zones, program)
    if nearest is None:
        assert not reports
        return
    [report] = reports
    assert isinstance(report, OutOfBounds)
    assert report.headline == "guard_zone_test::fill wrote past the end of out (int32 [10])"
    assert f"the byte {nearest} behind its storage of 40 bytes has changed" in str(report)
    assert report.location is not None
    assert "torch.ops.guard_zone_test.fill(" in report.location.text


def test_what_changed_before_the_operator_is_not_its_fault(
    operators: object, zones: OwnZones
) -> None:
    out, source = zones.make(10), zones.make(3)

    def program() -> None:
        ctypes.memset(out.data_ptr() + 40, 1, ZONE)
        torch.ops.guard_zone_test.fill(out, source, 40)

    assert not find_reports(zones, program)


def test_results_and_tensors_without_a_zone_are_counted_apart(
    operators: object, zones: OwnZones
) -> None:
    check = GuardZoneCheck(zones, lambda _: None)
    with trace_card((), lambda _: None, check):
        one = zones.make(2)
        torch.ops.guard_zone_test.join(one, one + 1)
    assert (check.counts.storages, check.counts.with_zone) == (2, 1)


def test_storages_of_the_host_and_empty_ones_are_not_counted(
    operators: object, zones: OwnZones
) -> None:
    check = GuardZoneCheck(zones, lambda _: None)
    with trace_card((), lambda _: None, check):
        out, empty = zones.make(2), torch.empty(0, dtype=torch.int32, device="cuda")
        torch.ops.guard_zone_test.fill(out, empty, 8)
        torch.ops.guard_zone_test.fill(out, torch.zeros(4), 8)
    assert check.counts.storages == 2


def test_each_device_has_results_of_its_own(operators: object, zones: OwnZones) -> None:
    tensors = [zones.make(10, device) for device in (0, 1)]

    def program() -> None:
        for out in tensors:
            torch.ops.guard_zone_test.fill(out, out, 44)

    assert len(find_reports(zones, program)) == 2
    assert zones.result_devices == [0, 1]


def test_reports_outlive_a_device_that_has_failed(
    operators: object, zones: OwnZones, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def synchronize(device: object = None) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    def start_tracing(checks: list[str], report: Callable[[Violation], None]) -> LaunchTracer:
        check = GuardZoneCheck(zones, report)
        return LaunchTracer(checks, CardClocks(), report, lambda *_: False, check)

    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(launch_reports, "start_tracing", start_tracing)
    monkeypatch.setattr(launch_reports.os, "register_at_fork", lambda **_: None)
    monkeypatch.setattr(launch_reports.atexit, "register", lambda _: None)
    monkeypatch.setattr(BackgroundTasks, "_run_forever", lambda _: time.sleep(60))
    process = launch_reports._TracedProcess(["graphs", "zones"], False)
    check, confirmed = process._tracer.zone_check, []
    assert check is not None
    monkeypatch.setattr(process._tracer, "_confirm_graphs", lambda: confirmed.append(True))
    out = zones.make(10)
    check.run(torch.ops.guard_zone_test.fill.default, (out, out, 44), {})
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    process._finish()
    found = read_reports(tmp_path, of_launches=True)
    [report] = found.reports
    assert "wrote past the end of out" in str(report)
    [failure] = found.failures
    assert "an illegal memory access" in failure
    assert confirmed
    assert found.traced is not None
    assert found.traced.counts["with_zone"] == 1


def test_a_process_without_zones_does_not_wait_for_a_device(
    zones: OwnZones, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[object] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *args: waits.append(args))
    GuardZoneCheck(zones, lambda _: None).finish()
    assert not waits


def test_torchs_own_operators_are_not_compared() -> None:
    assert not zone_check.is_compiled_operator(torch.ops.aten.add.Tensor)


def test_a_storage_that_the_allocator_did_not_make_has_no_zone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = card_zones.CardZones()
    storage = torch.zeros(10, dtype=torch.int32).untyped_storage()
    assert found.find_zone(storage) is None
    shorter = torch._C._construct_storage_from_data_pointer(  # type: ignore[attr-defined]
        storage.data_ptr(), torch.device("cpu"), 20
    )
    # A torch without CUDA lacks the function.
    monkeypatch.setattr(
        torch._C, "_has_Standard_Deleter", lambda it: it != shorter._cdata, raising=False
    )
    found.note_allocation(storage.data_ptr())
    zone = found.find_zone(storage)
    assert zone is not None
    assert (zone.data_ptr(), zone.numel()) == (storage.data_ptr() + 40, card_zones.BLOCK_BYTES - 40)
    assert found.find_zone(shorter) is None
    found.note_free(storage.data_ptr())
    assert found.find_zone(storage) is None
    full = torch.zeros(128, dtype=torch.int32).untyped_storage()
    found.note_allocation(full.data_ptr())
    assert found.find_zone(full) is None
