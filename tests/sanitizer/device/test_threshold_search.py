"""At which size a finding begins: searched if the batch shows it, else by how its address grows."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator

import pytest

from harness.runs.rehearse.sampled_launches import ProbedLaunches, make_near_finding
from harness.runs.rehearse.threshold_search import FullSizeBatch, ProbedMemory, ThresholdSearch
from harness.store.rehearse.values import INT32_LIMIT, RehearsalFinding, RehearsedLaunch

OVERFLOW = RehearsalFinding(
    "IntegerOverflow", "chunk", "m:walk", "wraps", "a.py", 3, "row * stride"
)
MEMORY = RehearsalFinding("OutOfMemory", "chunk", "", "does not fit", "b.py", 7, "torch.empty(n)")


READ = RehearsalFinding("UninitializedMemory", "chunk", "m:walk", "reads", "a.py", 3, "row")


def make_launch(extent: int, line: int) -> RehearsedLaunch:
    launch = RehearsedLaunch("m:walk", "chunk", (1, 1, 1), {}, extent=extent)
    launch.extent_file, launch.extent_line = "a.py", line
    return launch


class AddressOfSize:
    """A launcher whose only kernel has an address of a given growth."""

    access_line = OVERFLOW.line

    def __init__(self, extent: Callable[[int], int]) -> None:
        self.extent = extent
        self.sizes: list[int] = []  # that were made

    @contextlib.contextmanager
    def probe(self, kernels: frozenset[str]) -> Iterator[ProbedLaunches]:
        self.probed, self.kernels = ProbedLaunches({}, {}), kernels
        yield self.probed

    def make(self, size: int) -> None:
        self.sizes.append(size)
        if "m:walk" not in self.kernels:
            return
        extent = min(self.extent(size), INT32_LIMIT)
        self.probed.launches[("walk",)] = make_launch(extent, self.access_line)
        if extent == INT32_LIMIT:
            self.probed.findings[OVERFLOW.key] = OVERFLOW


def make_search(
    extent: Callable[[int], int],
    size: int,
    fits: int = 1 << 40,
    resident: float = 0.0,
    rounded_to: float = 0.0,
) -> tuple[ThresholdSearch, AddressOfSize]:
    launcher = AddressOfSize(extent)
    batch = FullSizeBatch("chunk", "", "--chunked-prefill-size", size, launcher.make)

    def probe_memory(make: Callable[[], None]) -> ProbedMemory:
        make()
        size = launcher.sizes[-1]
        share = resident + (1 - resident) * size / fits
        if rounded_to:
            share = math.floor(share / rounded_to) * rounded_to
        return ProbedMemory(share, [MEMORY] if size > fits else [])

    findings = [OVERFLOW, MEMORY]
    search = ThresholdSearch(launcher, batch, findings, probe_memory)  # type: ignore[arg-type]
    return search, launcher


def test_a_finding_begins_where_one_less_passes() -> None:
    search, launcher = make_search(lambda size: size * 57344, 65536)
    assert search.find(OVERFLOW) == 37450  # 37,449 * 57,344 is less than 2^31
    assert len(launcher.sizes) <= 4  # half, the guess, and one below it


def test_an_overflow_in_front_of_the_access_is_guessed_by_its_kernel() -> None:
    """The line that overflows computes an index, and the extents are of the load behind it."""
    search, launcher = make_search(lambda size: size * 57344, 65536)
    launcher.access_line = 4
    assert search.find(OVERFLOW) == 37450
    assert len(launcher.sizes) <= 4
    assert all(share > 0 for _, share in search.list_points(OVERFLOW, 1.0))


def test_an_uninitialized_read_that_is_not_repeated_has_no_smallest_size() -> None:
    search, launcher = make_search(lambda size: size, 64)
    assert search.find(READ) == 0
    assert launcher.sizes == [64]


def test_a_finding_whose_address_grows_otherwise_is_found_as_well() -> None:
    for power in (0.3, 2, 5):
        search, launcher = make_search(lambda n, p=power: int(3e9 * (n / 65536) ** p), 65536)
        begins = search.find(OVERFLOW)
        assert launcher.extent(begins) >= INT32_LIMIT > launcher.extent(begins - 1)
        assert len(launcher.sizes) <= 24


def test_a_probe_checks_the_kernels_of_the_findings_and_none_for_memory() -> None:
    search, launcher = make_search(lambda size: size * 57344, 65536, fits=20000)
    search.find(MEMORY)
    probed = len(launcher.sizes)
    assert launcher.kernels == frozenset()
    assert search.find(OVERFLOW) == 37450  # the sizes that were probed for memory say nothing
    assert launcher.kernels == {"m:walk"}
    assert len(launcher.sizes) > probed
    points = search.list_points(OVERFLOW, 1.0)
    assert all(share for _, share in points)


def test_memory_that_does_not_fit_begins_somewhere_too() -> None:
    search, launcher = make_search(lambda size: size, 4096, fits=1419)
    begins = search.find(MEMORY, whole=4096 / 1419)
    assert 1420 <= begins < 1420 + 4096 // 256
    assert len(launcher.sizes) <= 9
    points = dict(search.list_points(MEMORY, share=4096 / 1419))
    assert max(size for size, share in points.items() if share <= 1) >= begins - 4096 // 256
    assert (min(points) < 1419, max(points), points[4096] > 2) == (True, 4096, True)


def test_memory_that_an_allocator_rounds_takes_few_batches_to_search() -> None:
    """A prompt of 262,136 tokens, each batch of which takes half a minute: not one per halving."""
    for fits in (1000, 130_000, 174_001, 262_000):
        search, launcher = make_search(lambda n: n, 262_136, fits, rounded_to=0.003)
        begins = search.find(MEMORY, whole=262_136 / fits)
        assert 0 < begins - fits <= 2 * 262_136 // 256
        assert len(launcher.sizes) <= 9


def test_memory_beside_weights_and_pools_takes_few_batches_to_search() -> None:
    """Nine tenths of the card are in use before the batch, which grows in proportion."""
    search, launcher = make_search(lambda size: size, 4096, fits=3000, resident=0.9)
    begins = search.find(MEMORY, whole=0.9 + 0.1 * 4096 / 3000)
    assert 3001 <= begins < 3001 + 4096 // 256
    assert len(launcher.sizes) <= 4


def test_memory_begins_where_any_tensor_does_not_fit() -> None:
    """Of 1,199 to 1,295 requests a later, smaller tensor than the scratch does not fit."""
    search, launcher = make_search(lambda size: size, 4014, fits=1198, resident=0.87)
    smaller = RehearsalFinding("OutOfMemory", "chunk", "", "does not fit", text="torch.zeros(n)")

    def probe_memory(make: Callable[[], None]) -> ProbedMemory:
        make()
        size = launcher.sizes[-1]
        lacks = MEMORY if size >= 1296 else smaller
        return ProbedMemory(0.87 + 0.13 * size / 1198, [lacks] if size > 1198 else [])

    search._probe_memory = probe_memory
    assert 1199 <= search.find(MEMORY, whole=0.87 + 0.13 * 4014 / 1198) < 1199 + 4014 // 256
    assert len(launcher.sizes) <= 5


@pytest.mark.parametrize(
    ("power", "begins"), [(1, 524288), (2, 262144)], ids=["linear", "quadratic"]
)
def test_a_near_finding_begins_where_its_address_grows_to(power: int, begins: int) -> None:
    size = 131072
    whole = INT32_LIMIT // 4
    search, _ = make_search(lambda n: int(whole * (n / size) ** power), size)
    assert search.extrapolate(make_near_finding(make_launch(whole, OVERFLOW.line))) == begins


def test_an_address_that_does_not_grow_with_the_setting_begins_at_none_of_its_values() -> None:
    whole = INT32_LIMIT // 2
    search, _ = make_search(lambda n: whole, 4096)
    assert search.extrapolate(make_near_finding(make_launch(whole, OVERFLOW.line))) == 0
