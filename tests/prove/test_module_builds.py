"""CUDA modules are built beside the guards that need none, counted, and once for a release."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from calling import wait_until
from fixture_types import Output, Patch
from packaging.version import Version

from harness.cli.prove.progress import ProveProgress
from harness.core import paths
from harness.fixes.matching.toggle_status import ToggleState
from harness.guards.cells import GUARDED_STATUS
from harness.releases import cuda_toolkit, managed_releases
from harness.runs.kernels import cuda_builds
from harness.runs.kernels.module_builds import ModuleBuilds, start_builds
from harness.runs.kernels.values import BuildResult
from harness.runs.prove.plan import ProveRequest, ReleasePlan
from harness.runs.prove.release_pool import ProveListener, ReleasePool
from harness.sanitizer.plugins.for_sglang.recorded_builds import RecordedBuild
from harness.workers.guard_worker import GuardWorker
from harness.workers.messages import GuardsCollected, GuardTask
from harness.workers.release_target import ReleaseTarget

FIRST, SECOND = "kv_canary.verify", "speculative.tree"  # a build each
RELEASE = managed_releases.get_newest_release().name
TREE: Any = SimpleNamespace(version=Version(RELEASE))
TARGET = ReleaseTarget(RELEASE, Path("python"), TREE)


class Builder:
    """Builds modules when a test says so."""

    def __init__(self) -> None:
        self.may_build = threading.Semaphore(0)
        self.problem = ""
        self.requested: list[str] = []

    def build(self, release: Any, builds: list[RecordedBuild], jobs: int) -> Iterator[BuildResult]:
        self.requested += [build.module for build in builds]
        for build in builds:
            self.may_build.acquire()
            loader = f"{build.module}.{build.function}"
            yield BuildResult(build.name, 1.0, self.problem, loader)


@pytest.fixture
def builder(monkeypatch: Patch, tmp_path: Path) -> Builder:
    builder = Builder()
    monkeypatch.setattr(cuda_builds, "build_modules", builder.build)
    monkeypatch.setattr(cuda_toolkit, "find_toolkit", lambda: tmp_path)
    monkeypatch.setattr(paths, "cuda_builds_folder", lambda: tmp_path)
    return builder


def make_pool(listener: ProveListener) -> ReleasePool:
    request = ProveRequest("prove", [TARGET], [], True, start_builds=start_builds)
    plan = ReleasePlan(request, TARGET)
    store: Any = SimpleNamespace(save_release=lambda *_: 0, save_planned_cells=lambda *_: 0)
    run: Any = SimpleNamespace(id="run", settings={})
    pool = ReleasePool(plan, Path("folder"), run, store, listener)
    prepared: list[tuple[str, ...]] = [(FIRST,), (SECOND,), ()]
    pool.plan_items(
        GuardsCollected(
            [
                GuardTask(number, f"test_{number}", "toggle", "fixed", "fixed", prepared=names)
                for number, names in enumerate(prepared)
            ],
            0.0,
            "cpu",
            True,
        )
    )
    pool.is_collected = True
    return pool


def refill_pool(pool: ReleasePool) -> ReleasePool:
    pool.refill()
    return pool


def test_a_guard_waits_for_its_own_modules_alone(builder: Builder) -> None:
    pool = make_pool(ProveListener())
    assert [guard for _, guard, _ in pool.waiting] == ["test_2"]
    pool.waiting.clear()  # it has run
    assert not pool.is_done
    builder.may_build.release()
    wait_until(lambda: refill_pool(pool).waiting)
    assert [guard for _, guard, _ in pool.waiting] == ["test_0"]
    assert [guard for _, guard, _ in pool.blocked] == ["test_1"]
    builder.may_build.release(99)
    wait_until(lambda: not refill_pool(pool).blocked)


def test_builds_are_counted(builder: Builder, capsys: Output) -> None:
    counts: deque[tuple[int, int]] = deque()
    builder.may_build.release(99)
    start_builds(TARGET, "", {FIRST, SECOND}, 2, lambda *count: counts.append(count))
    count = counts[0][1]
    assert count > 1
    wait_until(lambda: (count, count) in counts)
    assert list(counts)[: count + 1] == [(built, count) for built in range(count + 1)]
    request: Any = SimpleNamespace(device="cpu", targets=[], jobs=2)
    with ProveProgress(request) as progress:
        progress.report_builds(RELEASE, 0, count)
        progress.report_builds(RELEASE, 1, count)
        assert [(task.completed, task.total) for task in progress.bar.tasks] == [(1, count)]
    assert f"{RELEASE}, built once: {count}, about" in capsys.readouterr().err


def is_built(builds: ModuleBuilds) -> bool:
    return not builds.is_missing([SECOND])


@pytest.mark.parametrize("problem", ["", "it does not compile"])
def test_what_was_built_is_not_asked_for_again(builder: Builder, problem: str) -> None:
    builder.may_build.release(99)
    builder.problem = problem
    for _ in range(2):
        builds = start_builds(TARGET, "sources", {SECOND}, 1, lambda *_: None)
        assert builds is not None
        wait_until(partial(is_built, builds))
    assert len(builder.requested) == len(set(builder.requested)) * (2 if problem else 1)


def test_a_worker_names_what_is_prepared_for_a_guard() -> None:
    toggle = SimpleNamespace(id="toggle", devices=[SimpleNamespace(value="cpu")])
    status = SimpleNamespace(toggle=toggle, state=ToggleState.FIXED, sites=[])
    mark = pytest.mark.prepared(by=print, names=(FIRST,)).mark
    item: Any = SimpleNamespace(
        nodeid="test_a", name="test_a", originalname="test_a", stash={GUARDED_STATUS: status}
    )
    item.callspec = SimpleNamespace(_idlist=["toggle"])
    item.get_closest_marker = {"prepared": mark}.get
    worker: Any = SimpleNamespace(settings=SimpleNamespace(sides=["fixed"]))
    (task,) = GuardWorker._make_runnable_tasks(worker, 0, item)
    assert task.prepared == (FIRST,)
