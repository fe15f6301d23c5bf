"""The guard worker: a process of a release's own Python that imports SGLang once and runs guards.

On a CPU each test runs in a fork. On a GPU the tests run in this process, one after another, since
a fork would have to initialize CUDA, which takes longer than most tests. A test that loses the
device or kills the process costs this worker, and no other test.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

from harness.core import device
from harness.core.errors import UnfixError
from harness.fixes.matching.toggle_status import ToggleState
from harness.guards import cells, plugin, pytest_adapter, replay, sides, unrunnable_guards
from harness.guards.cells import CELL_KEY, Side
from harness.patching import attestation, live_engine
from harness.store.prove import values
from harness.store.prove.values import SideOutcome
from harness.toggles import ToggleContext
from harness.workers import drop_references, repeat, run_item
from harness.workers.messages import (
    UNSIDED,
    GuardsCollected,
    GuardTask,
    GuardWorkerSettings,
    LiveToggleProblems,
    LiveToggleQuery,
    TaskEnded,
    TestRequest,
)
from harness.workers.pytest_session import WorkerSession, make_choices, run_worker


class GuardWorker(WorkerSession[GuardWorkerSettings]):
    """A worker that runs each side of a guard's cell by itself."""

    request_type = TestRequest
    only_forks_use_device = False

    def pytest_configure(self, config: pytest.Config) -> None:
        config.stash[plugin.SIDES_TO_RUN] = tuple(Side(side) for side in self.settings.sides)
        super().pytest_configure(config)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None, Any, Any]:
        """Select all sides of a guard together: `-k fixed` means its name, not its side."""
        everything = list(items)
        result = yield
        chosen = {name for name in map(_find_cell_key, items) if name is not None}
        kept = set(items)
        items[:] = [item for item in everything if item in kept or _find_cell_key(item) in chosen]
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        runnable = session.items if self.settings.sides else self.filter_runnable(session.items)
        self.items = [item for item in runnable if self._is_requested(item)]
        tasks = [
            task
            for number, item in enumerate(self.items)
            for task in self._make_tasks(number, item)
        ]
        for key, count in Counter(task.key for task in tasks).items():
            if count > 1:
                self.problems.append(f"{count} tests are called {key[1]}, guarding {key[0]}")
        can_fork = device.get_device() == "cpu"
        item_cells = (item.stash[CELL_KEY] for item in self.items if CELL_KEY in item.stash)
        present = (ToggleState.FIXED, ToggleState.BUGGY)
        applicable = (cell for cell in item_cells if cell.finding.state in present)
        # Once here, instead of in each supervisor.
        live_engine.engine.import_targets(map(cells.make_choice, applicable))
        self.freeze_for_forks(session, can_fork)
        seconds = time.time() - self.started
        release = str(live_engine.engine.sources.version)
        self.send_message(
            GuardsCollected(tasks, seconds, device.get_device(), can_fork, release, self.problems)
        )
        (self.serve_forks if can_fork else self._serve_in_process)()
        return True

    def _is_requested(self, item: pytest.Item) -> bool:
        if unrunnable_guards.UNRUNNABLE_REASON in item.stash:
            return self._is_unrunnable_requested(item)
        marks = cells.read_guard_marks(item)
        if marks is None:
            return False
        if not self.settings.sides:
            return True
        toggle_ids = self.settings.toggle_ids
        return not toggle_ids or item.stash[CELL_KEY].toggle.id in toggle_ids

    def _is_unrunnable_requested(self, item: pytest.Item) -> bool:
        """Return whether an unrunnable guard is requested; record a test that is no guard."""
        if not list(item.iter_markers(cells.GUARDS_MARKER)):
            self.filter_runnable([item])
            return False
        return not self.settings.toggle_ids or bool(
            {*self.settings.toggle_ids} & {*unrunnable_guards.read_guarded_names(item)}
        )

    def _make_tasks(self, number: int, item: pytest.Item) -> list[GuardTask]:
        why = item.stash.get(unrunnable_guards.UNRUNNABLE_REASON, "")
        if not why:
            return [self._make_task(number, item)]
        cell = item.stash.get(CELL_KEY, None)
        if cell is not None:
            name, side = replay.find_guard_node(item, cell), cell.side.value
            return [
                GuardTask(
                    number, name, cell.toggle.id, side, cell.finding.state.value, broken_reason=why
                )
            ]
        toggles = unrunnable_guards.read_guarded_names(item) or ["no toggle"]
        return [
            GuardTask(number, item.nodeid, toggle, "", "", broken_reason=why) for toggle in toggles
        ]

    def _make_task(self, number: int, item: pytest.Item) -> GuardTask:
        if not self.settings.sides:
            return GuardTask(number, item.nodeid, "", UNSIDED, "")
        cell = item.stash[CELL_KEY]
        state = cell.finding.state
        name, toggle, side = replay.find_guard_node(item, cell), cell.toggle.id, cell.side.value
        task = GuardTask(number, name, toggle, side, state.value)
        if state is ToggleState.STALE:
            task.problem = cell.finding.problem
        elif state is ToggleState.ABSENT:
            task.not_applicable_reason = "not in this release"
        elif device.get_device() not in {each.value for each in cell.toggle.devices}:
            task.not_applicable_reason = f"no bug of {device.get_device()}"
        return task

    # In forks

    def accept_requests(self) -> None:
        for request in self._receive_test_requests():
            self.dispatch_request(request)

    def run_request(self, request: TestRequest) -> values.SideResult:
        item = self.items[request.number]
        toggles = self._read_toggle_directions(item, request)
        _prebuild_patches(item)
        _validate_strategies(item)
        return self.run_in_own_process(
            request, functools.partial(self._run_test, item, request), toggles
        )

    def _run_test(self, item: pytest.Item, request: TestRequest) -> values.SideResult:
        if request.random_seed is not None:
            repeat.seed_random_sources(request.random_seed)
        if request.repeat_mode is None:
            return self._run_attempt(item)
        first = self._run_attempt(
            item, repeat.make_attempt_scope(request.repeat_mode, request.blob)
        )
        if not request.then_whole or first.outcome is SideOutcome.CUDA_ERROR:
            return first
        side = self._run_attempt(item)
        side.again = [values.SideRepetition(first.outcome, first.headline, first.seconds)]
        return side

    def _run_attempt(
        self, item: pytest.Item, attempt_scope: sides.AttemptScope | None = None
    ) -> values.SideResult:
        stash, full = item.config.stash, _count_device_ooms()
        if attempt_scope is not None:
            stash[sides.ATTEMPT_SCOPE] = attempt_scope
        try:
            # The details of a repeated failure only serve to recognize a full device.
            with_details = attempt_scope is None or device.get_device() != "cpu"
            side = run_item.run_protocol(item, self.recorder, with_details)
        finally:
            if attempt_scope is not None:
                del stash[sides.ATTEMPT_SCOPE]
        names_oom = "CUDA error: out of memory" in side.headline + side.detail
        if side.outcome not in (SideOutcome.PASSED, SideOutcome.NA) and (
            names_oom or _count_device_ooms() > full
        ):
            side.outcome = SideOutcome.OUT_OF_MEMORY
            side.headline = f"the memory of the device was full: {side.headline}"
        elif (error := _read_pending_device_error()) and side.outcome is not SideOutcome.FAILED:
            side.outcome = SideOutcome.CUDA_ERROR
            side.headline = side.headline or f"the device is lost after the test: {error}"
        return side

    def make_reply(
        self, request: TestRequest, side: values.SideResult, is_device_lost: bool = False
    ) -> TaskEnded:
        item = self.items[request.number]
        cell = item.stash.get(CELL_KEY, None)
        side.side = cell.side.value if cell is not None else UNSIDED
        side.way = repeat.choose_repeat_mode(item, side)
        return TaskEnded(request.serial, side, is_device_lost)

    # In this process

    def _serve_in_process(self) -> None:
        faulthandler.enable()
        while not self.pipe.is_peer_closed:
            for request in self._receive_test_requests():
                item, here = self.items[request.number], os.getpid()
                toggles = self._read_toggle_directions(item, request)
                begun, before = time.monotonic(), self._read_reach(toggles)
                with drop_references.drop_example_references(item):
                    side = self._run_test(item, request)
                if os.getpid() != here:
                    os._exit(70)  # in a fork by the test that did not exit
                after = self._read_reach(toggles)
                side.ran = {toggle: after[toggle] - before[toggle] for toggle in toggles}
                side.reach = sum(side.ran.values())
                side.overhead = max(0.0, time.monotonic() - begun - side.total_seconds)
                drop_references.drop_test_references(self.recorder)
                lost = side.outcome is SideOutcome.CUDA_ERROR or bool(_read_pending_device_error())
                if not lost:
                    _release_device_memory()
                self.send_message(self.make_reply(request, side, lost))
                if lost:
                    return

    def _read_reach(self, toggles: dict[str, str]) -> dict[str, int]:
        attested = attestation.read_attestations(live_engine.engine.recorder.file.parent)
        ours = [each for each in attested if each.pid == os.getpid()]
        return {
            toggle: sum(each.reach(toggle, direction) for each in ours)
            for toggle, direction in toggles.items()
        }

    def _receive_test_requests(self) -> list[TestRequest]:
        """Receive the requested tests, and answer queries at once."""
        requests = []
        for request in self.receive_requests(TestRequest | LiveToggleQuery):
            if isinstance(request, LiveToggleQuery):
                self.send_message(LiveToggleProblems(self._find_live_toggle_problems(request)))
            else:
                requests.append(request)
        return requests

    def _find_live_toggle_problems(self, question: LiveToggleQuery) -> dict[str, str]:
        reasons = {}
        for choice in make_choices(question.toggle_directions):
            try:
                # Warnings of the imported modules do not matter.
                with warnings.catch_warnings(action="ignore"), ToggleContext((choice,)):
                    pass
            except UnfixError as error:
                reasons[choice.toggle.id] = str(error)
        return reasons

    def _read_toggle_directions(self, item: pytest.Item, request: TestRequest) -> dict[str, str]:
        """Return the toggles that a test runs under; the plugin applies those of a request."""
        cell = item.stash.get(CELL_KEY, None)
        if cell is not None:
            return {cell.toggle.id: cells.choose_direction(cell).value}
        item.config.stash[plugin.APPLIED_CHANGES] = make_choices(request.toggle_directions)
        return dict(request.toggle_directions)


def _find_cell_key(item: pytest.Item) -> tuple[str, str] | None:
    """Return the guard and toggle of an item's cell, the same for all its sides."""
    cell = pytest_adapter.get_parameter(item, plugin.CELL_PARAMETER)
    if cell is None:
        return None
    return replay.find_guard_node(item, cell), cell.toggle.id


def _prebuild_patches(item: pytest.Item) -> None:
    """Build the patched code once, for all the forks that run it."""
    marks = cells.read_guard_marks(item)
    assert marks is not None
    cell = item.stash.get(CELL_KEY, None)
    under = item.config.stash.get(plugin.APPLIED_CHANGES, ())
    with (
        contextlib.suppress(Exception),  # the test itself reports it
        warnings.catch_warnings(action="ignore"),
        cells.revert_where_present(marks.always_reverted),
        cells.apply_cell(cell) if cell is not None else ToggleContext(under),
    ):
        pass
    if not live_engine.engine.is_idle:
        what = cell or ", ".join(map(str, under))
        raise RuntimeError(
            f"{what} could not be reverted: later results in this process would mean nothing"
        )


def _validate_strategies(item: pytest.Item) -> None:
    """Validate the strategies once, for all forks."""
    handle = getattr(getattr(item, "obj", None), "hypothesis", None)
    for strategy in getattr(handle, "_given_kwargs", {}).values():
        with contextlib.suppress(Exception):  # the test itself reports it
            strategy.validate()


def _find_initialized_cuda() -> Any:
    """Return torch.cuda if this process uses it."""
    torch: Any = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def _count_device_ooms() -> int:
    """Count the allocations of this process that failed because the device's memory was full."""
    return (
        int(cuda.memory_stats().get("num_ooms", 0))
        if (cuda := _find_initialized_cuda()) is not None
        else 0
    )


def _read_pending_device_error() -> str:
    """Return the error of one of the test's launches that is pending on the device."""
    if (cuda := _find_initialized_cuda()) is None:
        return ""
    try:
        cuda.synchronize()
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return ""


def _release_device_memory() -> None:
    """Free the device memory that a test used, for the next test of any process."""
    if (cuda := _find_initialized_cuda()) is not None:
        cuda.empty_cache()
    if (gpu_admission := sys.modules.get("harness.kernels.check.gpu_admission")) is not None:
        gpu_admission.leave()


if __name__ == "__main__":
    # A class that pytest skips at collection may contain guards.
    run_worker(GuardWorker, GuardWorkerSettings, ["-W", "error::pytest.PytestCollectionWarning"])
