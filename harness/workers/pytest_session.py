"""A worker: a pytest session in a release's own Python that stops where the tests would be run.

It says what it collected, and has what a run orders run by keepers, forks of this process. Whoever
derives from it says which tests those are. Started by `workers.py`, with the numbers of its two
pipes.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import sys
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, NoReturn, TypeVar

import msgspec
import pytest
from hypothesis import given, settings, strategies

from harness.core import device, preloading, processes
from harness.core.errors import NotReadyError, UnfixError
from harness.core.pipes import PipeEnd
from harness.fixes.patch_plan import Direction, ToggleChoice
from harness.guards import cells, plugin, pytest_adapter, unrunnable_guards
from harness.patching import jit_kernels, live_engine
from harness.store.prove.values import SideResult
from harness.workers import run_item
from harness.workers import supervisor as keepers
from harness.workers.messages import SETTINGS_VARIABLE, StartFailure, TestRequest, WorkerSettings

SettingsT = TypeVar("SettingsT", bound=WorkerSettings)


class WorkerSession(Generic[SettingsT]):
    """A pytest plugin that takes over where pytest would run the tests."""

    request_type: ClassVar[Any]  # the shape of what a keeper is given
    items: list[pytest.Item]  # once they are collected
    only_forks_use_device = (
        True  # what runs on a GPU does so in forks: this process leaves it to them
    )

    def __init__(self, settings: SettingsT, pipe: PipeEnd) -> None:
        self.settings = settings
        self.pipe = pipe
        self.started = time.time()
        self.folder = Path(settings.folder)
        self.recorder = run_item.PhaseRecorder()
        self.problems: list[str] = []
        self._supervisors: list[keepers.Supervisor] = []

    def pytest_configure(self, config: pytest.Config) -> None:
        config.pluginmanager.register(self.recorder)
        if not config.stash.get(plugin.IS_PREPARED, False):
            plugin.prepare_session(config)

    def pytest_sessionstart(self) -> None:
        """While little is imported: see `_first_example`."""
        with contextlib.suppress(ImportError):
            importlib.import_module("numpy")  # whose random numbers it looks for as well
        _draw_first_example()

    def freeze_for_forks(self, session: pytest.Session, can_fork: bool = True) -> None:
        """All is imported and collected; what comes after pytest hears of no more."""
        manager, idle = session.config.pluginmanager, ["terminalreporter"]
        if not any("caplog" in getattr(item, "fixturenames", ()) for item in self.items):
            idle.append("logging-plugin")  # six times a test it goes through all loggers there are
        for plugin_ in filter(None, map(manager.get_plugin, idle)):
            manager.unregister(plugin_)
        session.config.option.tbstyle = "value"  # `body.traceback_of` makes the traceback
        if not can_fork:
            gc.freeze()  # what is imported stays
            gc.enable()
            return
        for ready in _collect_before_forks(self.items):
            ready()
        if (checking := sys.modules.get("harness.checking")) is not None:
            checking.preload_checker()  # suites that check kernels have imported it
        for _ in jit_kernels.iterate_loaded_kernels():
            pass  # what its forks need not look through
        preloading.freeze_for_forks()

    # Collecting

    @pytest.hookimpl(wrapper=True)
    def pytest_load_initial_conftests(self) -> Generator[None, Any, None]:
        """One that fails is met again where its folder is collected: the others go on."""
        with contextlib.suppress(pytest_adapter.ConftestImportFailure, SystemExit):
            yield

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """A file that ends the process as it is imported ends its own collection."""
        try:
            return (yield)
        except SystemExit as error:
            why = f"importing it ends the process: SystemExit: {error}"
            return pytest.CollectReport(collector.nodeid, "failed", why, [])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        how = "cannot be collected" if report.failed else "skips itself as a whole"
        if not report.passed:
            self.problems.append(f"{report.nodeid} {how}: {report.longreprtext}")

    def filter_runnable(self, items: list[pytest.Item]) -> list[pytest.Item]:
        """Those that can be run; the others are said."""
        for item in items:
            if why := item.stash.get(unrunnable_guards.UNRUNNABLE_REASON, ""):
                self.problems.append(f"{item.nodeid} cannot be run: {why}")
        return [item for item in items if unrunnable_guards.UNRUNNABLE_REASON not in item.stash]

    def refuse_without_forks(self) -> bool:
        """Say so, and give True, where no fork can use the device."""
        if device.can_forks_use_device():
            return False
        words = "no fork of a process that has imported this release can use the GPU"
        self.send_message(
            StartFailure(f"{words}: it is in use from the import on; --device cpu runs")
        )
        return True

    # Talking

    def send_message(self, message: msgspec.Struct) -> None:
        self.pipe.send(msgspec.json.encode(message))

    def receive_requests(self, request_type: Any) -> list[Any]:
        """The orders that have come, of such shapes; blocks until there is something."""
        return [msgspec.json.decode(line, type=request_type) for line in self.pipe.receive_lines()]

    # Forks

    def serve_forks(self) -> None:
        """Until the run is gone: nobody wants the rest then."""
        while not self.pipe.is_peer_closed:
            keepers = {each.pipe.read_end: each for each in self._supervisors}
            for end in select.select([*keepers, self.pipe.read_end], [], [])[0]:
                if end == self.pipe.read_end:
                    self.accept_requests()
                else:
                    self._receive_from_supervisor(keepers[end])

    def accept_requests(self) -> None:
        """Give each that has come to a keeper."""
        for wanted in self.receive_requests(self.request_type):
            self.dispatch_request(wanted)

    def run_request(self, request: Any) -> SideResult:
        """In a keeper: have it run, `alone`."""
        raise NotImplementedError

    def make_reply(self, request: Any, side: SideResult) -> msgspec.Struct:
        """What the run is told of it."""
        raise NotImplementedError

    def dispatch_request(self, request: Any) -> None:
        told = msgspec.json.encode(request)
        for keeper in [each for each in self._supervisors if each.pending_request is None]:
            try:
                keeper.pipe.send(told)
            except BrokenPipeError:  # it ended while it had nothing to do
                self._retire_supervisor(keeper)
            else:
                keeper.pending_request = request
                return
        keeper = keepers.fork_supervisor(self._serve_as_supervisor)
        self._supervisors.append(keeper)
        keeper.pending_request = request
        with contextlib.suppress(BrokenPipeError):  # it has just ended, which is heard
            keeper.pipe.send(told)

    def run_in_own_process(
        self, request: TestRequest, test: Callable[[], SideResult], toggles: dict[str, str]
    ) -> SideResult:
        """Have a test run in a process of its own, which holds none of our pipes."""

        def alone() -> SideResult:
            self.pipe.close()
            return test()

        return keepers.run_supervised_test(alone, keepers.TestFiles(self.folder, request, toggles))

    def renew_supervisors(self) -> None:
        """What comes next is run by keepers that have what this process has by now."""
        for keeper in list(self._supervisors):
            keeper.is_retiring = True
            if keeper.pending_request is None:
                self._retire_supervisor(keeper)

    def _serve_as_supervisor(self, pipe: PipeEnd) -> None:
        """A keeper's life."""
        for other in self._supervisors:
            other.pipe.close()
        self.pipe.close()
        self.pipe = pipe
        if len(self.items) >= preloading.FORKS_TO_REPAY_COLLAPSE:  # each is forked at least once
            preloading.collapse_into_huge_pages()
        while not pipe.is_peer_closed:
            for wanted in self.receive_requests(self.request_type):
                try:
                    side = self.run_request(wanted)
                except Exception as error:  # told as what became of the test; then it ends
                    os.close(pipe.read_end)  # it is given nothing more
                    side = keepers.make_lost_result(f"{type(error).__name__}: {error}")
                    side.detail = traceback.format_exc()
                    self.send_message(self.make_reply(wanted, side))
                    raise
                self.send_message(self.make_reply(wanted, side))

    def _receive_from_supervisor(self, supervisor: keepers.Supervisor) -> None:
        for said in supervisor.pipe.receive_lines():
            supervisor.pending_request = None
            self.pipe.send(said)
        if supervisor.pipe.is_peer_closed:
            wanted, supervisor.pending_request = supervisor.pending_request, None
            how = self._retire_supervisor(supervisor)
            if wanted is not None:
                self.send_message(self.make_reply(wanted, keepers.make_lost_result(how)))
        elif supervisor.is_retiring and supervisor.pending_request is None:
            self._retire_supervisor(supervisor)

    def _retire_supervisor(self, supervisor: keepers.Supervisor) -> str:
        self._supervisors.remove(supervisor)
        return supervisor.describe_exit()


def make_choices(toggle_directions: list[tuple[str, str]]) -> tuple[ToggleChoice, ...]:
    known = {toggle.id: toggle for toggle in cells.load_registry()}
    return tuple(
        ToggleChoice(known[toggle], Direction(direction)) for toggle, direction in toggle_directions
    )


def _collect_before_forks(items: list[pytest.Item]) -> list[Callable[[], object]]:
    """What tests want done once, before they are forked; nothing for those not asked for."""
    marks = (mark for item in items for mark in item.iter_markers(plugin.BEFORE_FORKS_MARKER))
    return list(dict.fromkeys(ready for mark in marks for ready in mark.kwargs.values()))


@settings(max_examples=1, database=None)
@given(strategies.none())
def _draw_first_example(_: None) -> None:
    """Hypothesis' first example in a process looks through all that is imported by then."""


def run_worker(
    session_type: type[WorkerSession[SettingsT]],
    settings_type: type[SettingsT],
    pytest_arguments: Sequence[str] = (),
) -> NoReturn:
    """A worker's life; `words` are pytest's, besides those that every worker needs."""
    line = PipeEnd(*map(int, sys.argv[1:]))
    preloading.pause_gc_for_imports()
    processes.adopt_orphans()  # of a keeper that was ended
    code: int = 0
    try:
        told = msgspec.json.decode(os.environ[SETTINGS_VARIABLE], type=settings_type)
        if told.device != "cpu" and session_type.only_forks_use_device:
            device.defer_cuda_to_forks()
        worker = session_type(told, line)
        worker.folder.mkdir(parents=True, exist_ok=True)
        live_engine.engine.recorder.set_folder(worker.folder / "attestations")
        # Nothing is captured and no faulthandler is set: each test's own process does both.
        ours = ["-s", "-p", "no:faulthandler", "-p", "no:cacheprovider", "-p", "no:xdist"]
        # This module has imported Hypothesis before pytest could, which is no matter.
        ours += ["-W", "ignore::pytest.PytestAssertRewriteWarning", *pytest_arguments]
        ours += ["-p", plugin.__name__, "--continue-on-collection-errors", "--tb=native"]
        ours += ["--device", told.device, *told.pytest_arguments]
        code = int(preloading.with_large_stack(lambda: pytest.main(ours, plugins=[worker])))
        if not hasattr(worker, "items"):
            problems = worker.problems or [f"pytest ended with {pytest.ExitCode(code).name}"]
            worker.send_message(
                StartFailure("\n".join(problems), code == pytest.ExitCode.USAGE_ERROR)
            )
    except UnfixError as error:
        wrong_call = not isinstance(error, NotReadyError)
        line.send(msgspec.json.encode(StartFailure(str(error), wrong_call)))
    except BrokenPipeError:
        pass  # the run is gone
    sys.stdout.flush()
    processes.kill_descendants(os.getpid())
    os._exit(code)
