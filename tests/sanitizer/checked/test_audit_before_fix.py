"""The audit of a kernel on a release and on its parent: cache keys, and which findings are run."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from small_release import MODULE, write_release

from harness.runs.audit import analysis_worker, overflow_runs, size_limits, trial_launches
from harness.runs.audit.findings import FindingKey, FindingKind
from harness.runs.audit.lazy_release import LazyRelease
from harness.runs.audit.release_kernels import ReleaseKernels
from harness.runs.audit.threshold_search import FindingWithLoads

HELPED = """
import triton
import triton.language as tl

LEAST = tl.constexpr(7)


@triton.jit
def at_least(x):
    return x + LEAST


@triton.jit
def helped(x_ptr):
    tl.store(x_ptr, at_least(1))
"""
FIRST = (FindingKind.OVERFLOWS, "two_lines", "tl.store(x_ptr + row * stride, 1)")
SECOND = (FindingKind.OVERFLOWS, "two_lines", "tl.store(x_ptr + row * 512, 2)")


def test_a_kernels_cache_key_does_not_depend_on_load_order(tmp_path: Path) -> None:
    """Otherwise cached results would never be read."""
    place = write_release(tmp_path, HELPED)
    keys = set()
    for first in ("helped", "at_least"):
        world = LazyRelease(place)
        world.load_kernel(MODULE, first).cache_key  # noqa: B018
        keys.add(world.load_kernel(MODULE, "helped").cache_key)
    assert len(keys) == 1
    place.joinpath("sglang", "srt", "kernels.py").write_text(HELPED.replace("(7)", "(8)"))
    assert LazyRelease(place).load_kernel(MODULE, "helped").cache_key not in keys


def test_a_finding_is_run_on_the_parent_if_it_was_run_on_the_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finding that was too slow to run counts by arithmetic, as on the release itself."""
    kernels = ReleaseKernels(write_release(tmp_path), "sources")
    [kernel] = kernels.find_by_name("two_lines")
    run: list[FindingKey] = []

    def note_findings(loaded: Any, case: Any, found: Iterable[FindingWithLoads]) -> set[FindingKey]:
        run.extend(finding.key for finding, _ in found)
        return set()

    monkeypatch.setattr(overflow_runs, "select_observed_findings", note_findings)
    had = analysis_worker._find_observed_keys(
        kernels.release, kernel, size_limits.read_limits(), {FIRST: False, SECOND: True}
    )
    assert had == {FIRST}
    assert set(run) == {SECOND}


class PlayedLaunching:
    """A simulated kernel that overflows from a load on."""

    def __init__(self, least: int) -> None:
        self._least = least
        self.loads: list[int] = []

    def run(self, at: dict[str, int]) -> str:
        self.loads.append(at["tokens"])
        return trial_launches.OVERFLOWS if at["tokens"] >= self._least else trial_launches.PASSES


@pytest.mark.parametrize(
    ("least", "overflowing", "loads"), [(20, 50, [50]), (80, 100, [50, 100]), (200, "", [50, 100])]
)
def test_on_the_parent_any_overflowing_launch_is_enough(
    least: int, overflowing: int | str, loads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The smallest load is not needed there, and takes ten launches more."""
    monkeypatch.setattr(signal, "setitimer", lambda *arguments: None)
    played: Any = PlayedLaunching(least)
    found: Any = SimpleNamespace(quantity="tokens", threshold=50, largest=100)
    assert overflow_runs._find_any_load(played, found, {"tokens": 50, "heads": 4}) == overflowing
    assert played.loads == loads
