"""A compiled operator that changes bytes behind a tensor is named with the argument and the byte.

The source of events is a card's; the memory behind a tensor is this test's own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import pytest
import torch
from traced_card import trace_card

from harness.device import memory
from harness.kernels.check.violations import OutOfBounds, Violation
from harness.kernels.launches import card_zones, zone_check
from harness.kernels.launches.zone_check import MAX_SITES, GuardZoneCheck

ZONE = 24  # bytes


class OwnZones:
    """Each tensor of `make` has bytes behind it; no other one has."""

    def __init__(self) -> None:
        self._kept: list[torch.Tensor] = []
        self._starts: set[int] = set()

    def make(self, count: int) -> torch.Tensor:
        self._kept.append(torch.zeros(4 * count + ZONE, dtype=torch.uint8))
        start = self._kept[-1].data_ptr()
        self._starts.add(start)
        return memory.make_unowned((start, 4 * count, 0), (torch.int32, 0, (count,), (1,)))

    def find_zone(self, storage: torch.UntypedStorage) -> torch.Tensor | None:
        if storage.data_ptr() not in self._starts:
            return None
        end = storage.data_ptr() + storage.nbytes()
        return memory.make_unowned((end, ZONE, 0), (torch.uint8, 0, (ZONE,), (1,)))

    def allocate_results(self) -> tuple[torch.Tensor, torch.Tensor]:
        host = torch.zeros(MAX_SITES, dtype=torch.int32)
        return host, memory.relabel_as_device(host, 0)


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


def test_torchs_own_operators_are_not_compared() -> None:
    assert not zone_check.is_compiled_operator(torch.ops.aten.add.Tensor)


def test_a_storage_that_the_allocator_did_not_make_has_no_zone() -> None:
    found = card_zones.CardZones()
    storage = torch.zeros(10, dtype=torch.int32).untyped_storage()
    assert found.find_zone(storage) is None
    found.note_allocation(storage.data_ptr())
    zone = found.find_zone(storage)
    assert zone is not None
    assert (zone.data_ptr(), zone.numel()) == (storage.data_ptr() + 40, card_zones.BLOCK_BYTES - 40)
    found.note_free(storage.data_ptr())
    assert found.find_zone(storage) is None
    full = torch.zeros(128, dtype=torch.int32).untyped_storage()
    found.note_allocation(full.data_ptr())
    assert found.find_zone(full) is None
