"""A worker: one process of a release's own Python, which imports SGLang once and runs guards.

Each test runs in a fork of this process. On a GPU they run here, one after another, since a fork
would have to start CUDA anew, which takes longer than most of them; one that loses the device, or
the process, costs this worker and no other test.
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
    """One that runs guards, each side of a cell for itself."""

    request_type = TestRequest
    only_forks_use_device = False

    def pytest_configure(self, config: pytest.Config) -> None:
        config.stash[plugin.SIDES_TO_RUN] = tuple(Side(side) for side in self.settings.sides)
        super().pytest_configure(config)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None, Any, Any]:
        """A guard is chosen on all its sides: `-k fixed` means something else."""
        everything = list(items)
        result = yield
        chosen = {name for name in map(_find_cell_key, items) if name is not None}
        kept = set(items)
        items[:] = [item for item in everything if item in kept or _find_cell_key(item) in chosen]
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        found = session.items if self.settings.sides else self.filter_runnable(session.items)
        self.items = [item for item in found if self._is_requested(item)]
        tasks = [
            task
            for number, item in enumerate(self.items)
            for task in self._make_tasks(number, item)
        ]
        for key, count in Counter(task.key for task in tasks).items():
            if count > 1:
                self.problems.append(f"{count} tests are called {key[1]}, guarding {key[0]}")
        forks = device.get_device() == "cpu"
        of_cells = (item.stash[CELL_KEY] for item in self.items if CELL_KEY in item.stash)
        there = (
            cell
            for cell in of_cells
            if cell.finding.state in (ToggleState.FIXED, ToggleState.BUGGY)
        )
        live_engine.engine.import_targets(
            map(cells.make_choice, there)
        )  # once, and not in each keeper
        self.freeze_for_forks(session, forks)
        seconds = time.time() - self.started
        release = str(live_engine.engine.sources.version)
        self.send_message(
            GuardsCollected(tasks, seconds, device.get_device(), forks, release, self.problems)
        )
        (self.serve_forks if forks else self._serve_in_process)()
        return True

    def _is_requested(self, item: pytest.Item) -> bool:
        if unrunnable_guards.UNRUNNABLE_REASON in item.stash:
            return self._is_unrunnable_requested(item)
        marks = cells.read_guard_marks(item)
        if marks is None:
            return False
        asked = self.settings.toggle_ids
        if not self.settings.sides:
            return True
        return not asked or item.stash[CELL_KEY].toggle.id in asked

    def _is_unrunnable_requested(self, item: pytest.Item) -> bool:
        """One that says what it guards is a cell; of others nobody knows what is lost with them."""
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
        for order in self._receive_test_requests():
            self.dispatch_request(order)

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
            # What fails again was told when it first failed; a device may be full in any words.
            at_length = attempt_scope is None or device.get_device() != "cpu"
            side = run_item.run_protocol(item, self.recorder, at_length)
        finally:
            if attempt_scope is not None:
                del stash[sides.ATTEMPT_SCOPE]
        told = "CUDA error: out of memory" in side.headline + side.detail
        if side.outcome not in (SideOutcome.PASSED, SideOutcome.NA) and (
            told or _count_device_ooms() > full
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

    # Here

    def _serve_in_process(self) -> None:
        faulthandler.enable()
        while not self.pipe.is_peer_closed:
            for order in self._receive_test_requests():
                item, here = self.items[order.number], os.getpid()
                toggles = self._read_toggle_directions(item, order)
                begun, before = time.monotonic(), self._read_reach(toggles)
                with drop_references.drop_example_references(item):
                    side = self._run_test(item, order)
                if os.getpid() != here:
                    os._exit(70)  # a process that the test forked and that did not end there
                after = self._read_reach(toggles)
                side.ran = {toggle: after[toggle] - before[toggle] for toggle in toggles}
                side.reach = sum(side.ran.values())
                side.overhead = max(0.0, time.monotonic() - begun - side.total_seconds)
                drop_references.drop_test_references(self.recorder)
                lost = side.outcome is SideOutcome.CUDA_ERROR or bool(_read_pending_device_error())
                if not lost:
                    _release_device_memory()
                self.send_message(self.make_reply(order, side, lost))
                if lost:
                    return

    def _read_reach(self, toggles: dict[str, str]) -> dict[str, int]:
        attested = attestation.read_attestations(live_engine.engine.recorder.file.parent)
        ours = [found for found in attested if found.pid == os.getpid()]
        return {
            toggle: sum(found.reach(toggle, direction) for found in ours)
            for toggle, direction in toggles.items()
        }

    def _receive_test_requests(self) -> list[TestRequest]:
        """The tests that are wanted; questions are answered at once."""
        found = []
        for order in self.receive_requests(TestRequest | LiveToggleQuery):
            if isinstance(order, LiveToggleQuery):
                self.send_message(LiveToggleProblems(self._find_live_toggle_problems(order)))
            else:
                found.append(order)
        return found

    def _find_live_toggle_problems(self, question: LiveToggleQuery) -> dict[str, str]:
        reasons = {}
        for choice in make_choices(question.toggle_directions):
            try:
                # A module that warns as it is imported here is imported all the same.
                with warnings.catch_warnings(action="ignore"), ToggleContext((choice,)):
                    pass
            except UnfixError as error:
                reasons[choice.toggle.id] = str(error)
        return reasons

    def _read_toggle_directions(self, item: pytest.Item, request: TestRequest) -> dict[str, str]:
        """The toggles that a test is run under; those of an order are put in by the plugin."""
        cell = item.stash.get(CELL_KEY, None)
        if cell is not None:
            return {cell.toggle.id: cells.choose_direction(cell).value}
        item.config.stash[plugin.APPLIED_CHANGES] = make_choices(request.toggle_directions)
        return dict(request.toggle_directions)


def _find_cell_key(item: pytest.Item) -> tuple[str, str] | None:
    """What the sides of one cell have in common."""
    cell = pytest_adapter.get_parameter(item, plugin.CELL_PARAMETER)
    if cell is None:
        return None
    return replay.find_guard_node(item, cell), cell.toggle.id


def _prebuild_patches(item: pytest.Item) -> None:
    """Have the patched code made here once, for all the forks that run it."""
    marks = cells.read_guard_marks(item)
    assert marks is not None
    cell = item.stash.get(CELL_KEY, None)
    under = item.config.stash.get(plugin.APPLIED_CHANGES, ())
    with (
        contextlib.suppress(Exception),  # the test itself will meet it, and say it
        warnings.catch_warnings(action="ignore"),
        cells.revert_where_present(marks.always_reverted),
        cells.apply_cell(cell) if cell is not None else ToggleContext(under),
    ):
        pass
    if not live_engine.engine.is_idle:
        what = cell or ", ".join(map(str, under))
        raise RuntimeError(f"{what} could not be taken out again: what comes after it says nothing")


def _validate_strategies(item: pytest.Item) -> None:
    """What Hypothesis works out of a strategy once is worked out here, for all forks."""
    handle = getattr(getattr(item, "obj", None), "hypothesis", None)
    for strategy in getattr(handle, "_given_kwargs", {}).values():
        with contextlib.suppress(Exception):  # the test itself will meet it, and say it
            strategy.validate()


def _find_initialized_cuda() -> Any:
    """torch.cuda, where this process uses it."""
    torch: Any = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def _count_device_ooms() -> int:
    """How often this process found the device's memory full: others had it, whatever that did."""
    return (
        int(cuda.memory_stats().get("num_ooms", 0))
        if (cuda := _find_initialized_cuda()) is not None
        else 0
    )


def _read_pending_device_error() -> str:
    """What a launch of the test left pending; anything but CUDA's own errors goes on up."""
    if (cuda := _find_initialized_cuda()) is None:
        return ""
    try:
        cuda.synchronize()
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return ""


def _release_device_memory() -> None:
    """What a test had of the device is the next one's, in whichever process."""
    if (cuda := _find_initialized_cuda()) is not None:
        cuda.empty_cache()
    if (gpu_admission := sys.modules.get("harness.kernels.check.gpu_admission")) is not None:
        gpu_admission.leave()


if __name__ == "__main__":
    # A class that pytest leaves out of the collection may hold guards.
    run_worker(GuardWorker, GuardWorkerSettings, ["-W", "error::pytest.PytestCollectionWarning"])
