"""Where an overflow begins over two settings: the batch's own, and the pool's slots."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from harness.runs.rehearse.deployment import Deployment
from harness.runs.rehearse.sampled_launches import ProbedLaunches
from harness.runs.rehearse.smallest_settings import SmallestSettings
from harness.runs.rehearse.threshold_search import FullSizeBatch, ProbedMemory
from harness.store.rehearse.values import (
    INT32_LIMIT,
    DeploymentResult,
    FindingRank,
    RehearsalFinding,
    RehearsedLaunch,
    RehearsedPhase,
)

GIGABYTE = 10**9
SLOTS, REQUESTS = 1_000_000, 4096
FINDING = RehearsalFinding(
    "IntegerOverflow", "decode", "m:walk", "wraps", "a.py", 3, "row * stride"
)


class AddressOfTwoSettings:
    """A model and a launcher whose only kernel has an address of the batch's size and the pool."""

    def __init__(self, extent: Callable[[int, int], int]) -> None:
        self.extent, self.slots = extent, SLOTS
        self.rehearsed: list[tuple[int, int]] = []

    def find_longest_context(self) -> int:
        return 1 << 20

    @contextlib.contextmanager
    def use_smaller_pool(self, slots: int) -> Iterator[None]:
        self.slots = slots
        yield
        self.slots = SLOTS

    @contextlib.contextmanager
    def probe(self, kernels: frozenset[str]) -> Iterator[ProbedLaunches]:
        self.probed = ProbedLaunches({}, {})
        yield self.probed

    def make(self, size: int) -> None:
        self.rehearsed.append((size, self.slots))
        extent = min(self.extent(size, self.slots), INT32_LIMIT)
        launch = RehearsedLaunch("m:walk", "decode", (1, 1, 1), {}, extent=extent)
        launch.extent_file, launch.extent_line = "a.py", 3
        self.probed.launches[("walk",)] = launch
        if extent == INT32_LIMIT:
            self.probed.findings[FINDING.key] = FINDING


def search_settings(
    extent: Callable[[int, int], int], finding: RehearsalFinding, needed: int = 2 * REQUESTS
) -> RehearsalFinding:
    """Search the settings of one finding of a decode, and return it."""
    finding = msgspec.structs.replace(finding)
    whole = min(extent(REQUESTS, SLOTS), INT32_LIMIT)
    if finding.kernel and whole < INT32_LIMIT:
        finding.rank, finding.extent = FindingRank.NEAR, whole
    list_batches(extent, [finding], needed)
    return finding


def list_batches(
    extent: Callable[[int, int], int], findings: list[RehearsalFinding], needed: int = 2 * REQUESTS
) -> list[tuple[int, int]]:
    """Search the settings of findings; return the batches that are made, with their slots."""
    model: Any = AddressOfTwoSettings(extent)
    result = DeploymentResult(
        *("m", "m", "H200", 8),
        memory={"pools": 100 * GIGABYTE},
        settings={"slots": SLOTS, "context": 4096},
        card_memory=140 * GIGABYTE,
        phases=[RehearsedPhase("decode", "", 145 * GIGABYTE)],
    )

    def probe_memory(make: Callable[[], None]) -> ProbedMemory:
        make()
        return ProbedMemory(1.0, [])

    batch = FullSizeBatch("decode", "", "--max-running-requests", REQUESTS, model.make, needed)
    settings = SmallestSettings(Deployment("m"), result, model, model, probe_memory)
    settings.search(batch, findings)
    batches: list[tuple[int, int]] = model.rehearsed
    assert all(slots >= needed for _, slots in batches)
    return batches


def get_words(command: str) -> list[str]:
    return command.partition(" -- ")[2].split()


def test_an_overflow_of_the_batch_alone_begins_at_one_size_beside_each_pool() -> None:
    found = search_settings(lambda size, slots: size * 2**21, FINDING)
    assert get_words(found.threshold) == ["--max-running-requests", "1024"]
    assert found.pool_points == [(SLOTS // 2, 1024), (SLOTS, 1024)]
    assert found.pool_threshold == ""


def test_an_overflow_of_the_pool_alone_has_a_smallest_pool() -> None:
    found = search_settings(lambda size, slots: slots * 4096, FINDING)
    words = ["--max-running-requests", "4096", "--max-total-tokens", "524288"]
    assert get_words(found.pool_threshold) == words
    assert found.pool_points == []  # beside half the pool no batch shows it


def test_overflows_of_one_batch_share_the_batches_that_are_made() -> None:
    def extent(size: int, slots: int) -> int:
        return 4 * size * slots

    findings = [msgspec.structs.replace(FINDING) for _ in range(2)]
    assert list_batches(extent, findings) == list_batches(extent, findings[:1])
    assert findings[0].pool_threshold == findings[1].pool_threshold != ""


def test_an_overflow_of_both_begins_at_a_larger_batch_beside_a_smaller_pool() -> None:
    found = search_settings(lambda size, slots: 4 * size * slots, FINDING)
    assert get_words(found.threshold)[1] == "537"  # 2^31 / 4,000,000
    assert found.pool_points == [(SLOTS // 2, 1074), (SLOTS, 537)]
    assert get_words(found.pool_threshold)[-1] == "131072"  # 2^31 / (4 * 4,096)


@pytest.mark.parametrize(
    ("extent", "threshold", "pool", "points"),
    [
        (lambda size, slots: size * 2**18, "8192", "", [(500_000, 8192), (SLOTS, 8192)]),
        (lambda size, slots: slots * 1024, "2097152", "2097152", []),
        (
            lambda size, slots: size * slots // 4,
            *("8590", "2097152"),
            [(500_000, 17180), (SLOTS, 8590)],
        ),
    ],
)
def test_a_near_address_is_extrapolated_over_both_settings(
    extent: Callable[[int, int], int],
    threshold: str,
    pool: str,
    points: list[tuple[int, int]],
) -> None:
    found = search_settings(extent, FINDING)
    assert get_words(found.threshold)[-1] == threshold
    assert get_words(found.pool_threshold)[-1:] == ([pool] if pool else [])
    assert found.pool_points == points


def test_a_batch_that_needs_the_whole_pool_is_made_beside_no_smaller_one() -> None:
    found = search_settings(lambda size, slots: size * slots, FINDING, needed=950_000)
    assert (found.pool_points, found.pool_threshold) == ([], "")


def test_memory_begins_not_to_fit_at_the_slots_whose_memory_is_missing() -> None:
    memory = RehearsalFinding("OutOfMemory", "decode", "", "does not fit", "b.py", 7, "empty")
    found = search_settings(lambda size, slots: 1, memory)
    # 5 GB too much are 50,000 slots of 100,000 bytes.
    words = ["--max-running-requests", "4096", "--max-total-tokens", "950001"]
    assert get_words(found.pool_threshold) == words
    assert search_settings(lambda size, slots: 1, memory, needed=960_000).pool_threshold == ""
