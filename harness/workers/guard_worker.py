"""The guard worker: a process of a release's own Python that imports SGLang once and runs guards.

On a CPU each test runs in a fork. On a GPU the tests run in this process, one after another, since
a fork would have to initialize CUDA, which takes longer than most tests. A test that loses the
device or kills the process costs this worker, and no other test.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import shutil
import time
import warnings
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

from harness.core import device
from harness.core.errors import UnfixError
from harness.core.outcomes import Outcome
from harness.core.wording import format_count
from harness.fixes.matching.toggle_status import ToggleState
from harness.guards import (
    cells,
    plugin,
    preparations,
    pytest_adapter,
    repeat,
    replay,
    unrunnable_guards,
)
from harness.guards.cells import GUARDED_STATUS, GuardCell, Side
from harness.guards.sides import AttemptScope, SideAttempt, choose_side
from harness.patching import attestation, live_engine
from harness.patching.import_runs import RUNS
from harness.store.prove import values
from harness.toggles import ToggleContext
from harness.workers import device_tests, drop_references, loaded_programs
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
from harness.workers.run_folder import RunFolder

# The arguments of pytest by which a call chooses tests: -k, -m, --deselect.
_SELECTIONS = ("-k", "-m", "--deselect")


class GuardWorker(WorkerSession[GuardWorkerSettings]):
    """A worker that runs each side of a guard's cell by itself."""

    request_type = TestRequest
    only_forks_use_device = False

    def pytest_configure(self, config: pytest.Config) -> None:
        config.stash[plugin.RUNS_CELLS] = bool(self.settings.sides)
        self._deselected_by_call: list[pytest.Item] = []
        super().pytest_configure(config)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> Generator[None, None, None]:
        """Report the guards that a conftest.py or settings of pytest leave out of the run."""
        collected = list(items)
        yield
        left = {*items, *self._deselected_by_call}
        gone = [
            item.nodeid
            for item in collected
            if item not in left and item.get_closest_marker(cells.GUARDS_MARKER)
        ]
        if gone:
            count, names = format_count(len(gone), "guard"), ", ".join(gone)
            self.problems.append(
                f"a conftest.py or settings of pytest leave out {count}: {names}; "
                "the call may choose guards (-k)"
            )

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        if any(word.startswith(_SELECTIONS) for word in self.settings.pytest_arguments):
            self._deselected_by_call += items

    def make_run_folder(self, number: int) -> RunFolder | None:
        if not self.settings.run_folders:
            return None
        return RunFolder.make(Path(self.settings.run_folders), number)

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
        can_fork = not device.has_gpu()
        statuses = (item.stash.get(GUARDED_STATUS, None) for item in self.items)
        present = (ToggleState.FIXED, ToggleState.BUGGY)
        # Once here, instead of in each supervisor.
        live_engine.engine.import_targets(
            cells.make_choice(GuardCell(status, Side.AS_IS))
            for status in statuses
            if status is not None and status.state in present
        )
        self.freeze_for_forks(session, can_fork)
        seconds = time.time() - self.started
        release = str(live_engine.engine.sources.version)
        self.send_message(
            GuardsCollected(tasks, seconds, device.get_device(), can_fork, release, self.problems)
        )
        (self.serve_forks if can_fork else self._serve_in_process)()
        if self.settings.run_folders:  # the run removes it, too, unless it is gone
            shutil.rmtree(self.settings.run_folders, ignore_errors=True)
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
        return not toggle_ids or item.stash[GUARDED_STATUS].toggle.id in toggle_ids

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
            return self._make_runnable_tasks(number, item)
        status = item.stash.get(GUARDED_STATUS, None)
        if status is not None:
            name, toggle = replay.find_guard_node(item), status.toggle.id
            return [
                GuardTask(number, name, toggle, side, status.state.value, broken_reason=why)
                for side in self.settings.sides
            ]
        toggles = unrunnable_guards.read_guarded_names(item) or ["no toggle"]
        return [
            GuardTask(number, item.nodeid, toggle, "", "", broken_reason=why) for toggle in toggles
        ]

    def _make_runnable_tasks(self, number: int, item: pytest.Item) -> list[GuardTask]:
        if not self.settings.sides:
            return [GuardTask(number, item.nodeid, "", UNSIDED, "")]
        status = item.stash[GUARDED_STATUS]
        problem = reason = ""
        if status.state is ToggleState.STALE:
            problem = status.problem
        elif status.state is ToggleState.ABSENT:
            reason = "not in this release"
        elif device.list_kinds().isdisjoint(each.value for each in status.toggle.devices):
            reason = f"no bug of {device.get_device()}"
        name, toggle, state = replay.find_guard_node(item), status.toggle.id, status.state.value
        preparation = preparations.read_preparation(item)
        prepared = () if preparation is None else preparation.names
        moment = cells.describe_moment(status)
        return [
            GuardTask(number, name, toggle, side, state, problem, "", reason, prepared, moment)
            for side in self.settings.sides
        ]

    # In forks

    def accept_requests(self) -> None:
        for request in self._receive_test_requests():
            self.dispatch_request(request)

    def find_supervisor_kind(self, request: TestRequest) -> object:
        preparation = preparations.read_preparation(self.items[request.number])
        return None if preparation is None else preparation.function

    def run_request(self, request: TestRequest) -> values.SideResult:
        item = self.items[request.number]
        toggles = self._read_toggle_directions(item, request)
        self.is_worn_out = not _prepare_item(item, request)
        _validate_strategies(item)

        def run_test() -> values.SideResult:
            with loaded_programs.record_loaded_programs(self._locate_programs(request)):
                return self._run_test(item, request)

        return self.run_in_own_process(request, run_test, toggles)

    def learn_from_run(self, request: TestRequest) -> None:
        loaded_programs.preload_programs(self._locate_programs(request))

    def _locate_programs(self, request: TestRequest) -> Path:
        """Return the file of the compiled kernels that a run loaded."""
        folder = self.folder if self.run_folder is None else self.run_folder.path
        return folder / f"{request.serial}.programs"

    def _run_test(self, item: pytest.Item, request: TestRequest) -> values.SideResult:
        if request.random_seed is not None:
            repeat.seed_random_sources(request.random_seed)
        if request.repeat_mode is None:
            return self._run_attempt(item, request.side)
        scope = repeat.make_attempt_scope(request.repeat_mode, request.blob)
        first = self._run_attempt(item, request.side, scope)
        if not request.then_whole or first.outcome is Outcome.CUDA_ERROR:
            return first
        side = self._run_attempt(item, request.side)
        side.again = [values.SideRepetition(first.outcome, first.headline, first.seconds)]
        return side

    def _run_attempt(
        self, item: pytest.Item, side_name: str, scope: AttemptScope | None = None
    ) -> values.SideResult:
        attempt = SideAttempt(Side(side_name), scope) if side_name != UNSIDED else None
        # The details of a repeated failure only serve to recognize a full device.
        with_details = scope is None or device.has_gpu()
        with choose_side(item.config, attempt) if attempt else contextlib.nullcontext():
            return device_tests.run_protocol(item, self.recorder, with_details)

    def make_reply(
        self, request: TestRequest, side: values.SideResult, is_device_lost: bool = False
    ) -> TaskEnded:
        item = self.items[request.number]
        side.side = request.side
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
                side = self._run_test(item, request)
                if os.getpid() != here:
                    os._exit(70)  # in a fork by the test that did not exit
                after = self._read_reach(toggles)
                side.ran = {toggle: after[toggle] - before[toggle] for toggle in toggles}
                side.reach = sum(side.ran.values())
                side.overhead = max(0.0, time.monotonic() - begun - side.total_seconds)
                drop_references.drop_test_references(self.recorder)
                lost = side.outcome is Outcome.CUDA_ERROR or bool(device_tests.read_pending_error())
                if not lost:
                    device_tests.release_memory()
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
        status = item.stash.get(GUARDED_STATUS, None)
        if status is not None:
            cell = GuardCell(status, Side(request.side))
            return {status.toggle.id: cells.choose_direction(cell).value}
        item.config.stash[plugin.APPLIED_CHANGES] = make_choices(request.toggle_directions)
        return dict(request.toggle_directions)


def _prepare_item(item: pytest.Item, request: TestRequest) -> bool:
    """Make an item's preparation and patched code, once for all the forks that run it.

    Return whether the preparation succeeded; if not, this process may hold half of it.
    """
    marks = cells.read_guard_marks(item)
    assert marks is not None
    status = item.stash.get(GUARDED_STATUS, None)
    cell = GuardCell(status, Side(request.side)) if status is not None else None
    under = item.config.stash.get(plugin.APPLIED_CHANGES, ())
    preparation = preparations.read_preparation(item)
    if preparation is not None and pytest_adapter.is_left_out(item):
        preparation = None
    with RUNS.record(str(item.path)):  # what it keeps of SGLang's answers is of this side alone
        succeeded = preparation is None or preparation.try_run()
    with (
        contextlib.suppress(Exception),  # the test itself reports it
        warnings.catch_warnings(action="ignore"),
        cells.revert_where_present(marks.always_reverted),
        cells.apply_cell(cell) if cell is not None else ToggleContext(under),
    ):
        if preparation is not None:
            succeeded &= preparation.try_run()
    if not live_engine.engine.is_idle:
        what = cell or ", ".join(map(str, under))
        raise RuntimeError(
            f"{what} could not be reverted: later results in this process would mean nothing"
        )
    return succeeded


def _validate_strategies(item: pytest.Item) -> None:
    """Validate the strategies once, for all forks."""
    handle = getattr(getattr(item, "obj", None), "hypothesis", None)
    for strategy in getattr(handle, "_given_kwargs", {}).values():
        with contextlib.suppress(Exception):  # the test itself reports it
            strategy.validate()


if __name__ == "__main__":
    # A class that pytest skips at collection may contain guards.
    run_worker(GuardWorker, GuardWorkerSettings, ["-W", "error::pytest.PytestCollectionWarning"])
