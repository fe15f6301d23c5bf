"""A worker: a pytest session in a release's own Python that stops before pytest runs the tests.

It reports the collected tests, and runs the requested ones. Each test has a process below one of
the supervisors, which are forks of this process. `WorkerProcess` starts it with the descriptors of
its two pipes. Subclasses choose the tests and the messages. On a GPU many tests share a process
(`shared_runs`).
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, NoReturn, TypeVar

import msgspec
import pytest
from hypothesis import given, settings, strategies

from harness.core import device, preloading, processes
from harness.core.errors import NotReadyError, UnfixError
from harness.core.pipes import PipeEnd, Receivers, serve_until
from harness.fixes.patch_plan import Direction, ToggleChoice
from harness.guards import cells, plugin, pytest_adapter, run_item, unrunnable_guards
from harness.patching import bootstrap, import_origins, live_engine
from harness.patching.import_runs import EVERYBODY, RUNS
from harness.sanitizer.triton import jit_kernels
from harness.store.prove.values import SideResult
from harness.workers import supervisor as supervision
from harness.workers.messages import SETTINGS_VARIABLE, StartFailure, TestRequest, WorkerSettings
from harness.workers.run_folder import RunFolder
from harness.workers.shared_process import SharedRun
from harness.workers.shared_runs import STARTED, SharedRuns

SettingsT = TypeVar("SettingsT", bound=WorkerSettings)


def find_decisive_line(report: pytest.CollectReport) -> str:
    """Return the line that says why a file cannot be collected: the error that ends a traceback."""
    lines = report.longreprtext.strip().splitlines() or [""]
    errors = [line[1:].strip() for line in lines if line.startswith("E ")]
    return errors[-1] if errors else lines[-1 if lines[0].startswith("Traceback") else 0]


class WorkerSession(Generic[SettingsT]):
    """A pytest plugin that replaces pytest's run loop."""

    request_type: ClassVar[Any]  # the type of requests to a supervisor
    items: list[pytest.Item]  # the collected tests
    is_worn_out = False  # whether this supervisor ends after its reply
    only_forks_use_device = True  # this process leaves the GPU to its forks
    shared_runs: SharedRuns  # what runs tests that share processes

    def __init__(self, settings: SettingsT, pipe: PipeEnd) -> None:
        self.settings = settings
        self.pipe = pipe
        self.started = time.time()
        self.folder = Path(settings.folder)
        self.recorder = run_item.PhaseRecorder()
        self.problems: list[str] = []
        self.run_folder: RunFolder | None = None  # in a supervisor, if runs are confined
        self._supervisors: list[supervision.Supervisor] = []
        self._supervisor_count = 0
        self.environment = dict(os.environ)

    def make_run_folder(self, number: int) -> RunFolder | None:
        """Make the folder of a supervisor's runs; None lets them write anywhere."""
        return None

    def pytest_configure(self, config: pytest.Config) -> None:
        config.pluginmanager.register(self.recorder)
        if not config.stash.get(plugin.IS_PREPARED, False):
            plugin.prepare_session(config)

    def pytest_sessionstart(self) -> None:
        """Draw the first example while few modules are imported (see `_draw_first_example`)."""
        with contextlib.suppress(ImportError):
            importlib.import_module("numpy")  # Hypothesis seeds its random numbers
        _draw_first_example()

    def freeze_for_forks(self, session: pytest.Session, can_fork: bool = True) -> None:
        """Prepare for forks, once everything is imported and collected."""
        manager, idle = session.config.pluginmanager, ["terminalreporter"]
        if not any("caplog" in getattr(item, "fixturenames", ()) for item in self.items):
            idle.append("logging-plugin")  # it visits all loggers six times per test
        for plugin_ in filter(None, map(manager.get_plugin, idle)):
            manager.unregister(plugin_)
        session.config.option.tbstyle = "value"  # `run_item` makes the traceback
        if not can_fork:
            RUNS.stop()
            gc.freeze()  # imported objects stay alive anyway
            gc.enable()
            return
        for ready in _collect_before_forks(self.items):
            ready()
        RUNS.stop()
        if (checking := sys.modules.get("harness.checking")) is not None:
            checking.preload_checker()  # imported by suites that check kernels
        for _ in jit_kernels.iterate_loaded_kernels():
            pass  # a search that saves the forks theirs
        preloading.freeze_for_forks()

    # Collecting

    @pytest.hookimpl(wrapper=True)
    def pytest_load_initial_conftests(self) -> Generator[None, Any, None]:
        """Report a failing conftest when its folder is collected, and go on with the others."""
        with contextlib.suppress(pytest_adapter.ConftestImportFailure, SystemExit):
            yield

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Turn an exit during a file's import into a failure to collect that file."""
        try:
            return (yield)
        except SystemExit as error:
            why = f"importing it ends the process: SystemExit: {error}"
            return pytest.CollectReport(collector.nodeid, "failed", why, [])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        how = "cannot be collected" if report.failed else "skips itself as a whole"
        if not report.passed:
            self.problems.append(f"{report.nodeid} {how}: {find_decisive_line(report)}")

    def filter_runnable(self, items: list[pytest.Item]) -> list[pytest.Item]:
        """Return the items that can run, and record the others as problems."""
        for item in items:
            if why := item.stash.get(unrunnable_guards.UNRUNNABLE_REASON, ""):
                self.problems.append(f"{item.nodeid} cannot be run: {why}")
        return [item for item in items if unrunnable_guards.UNRUNNABLE_REASON not in item.stash]

    def choose_processes(self, session: pytest.Session) -> bool:
        """Prepare what runs the tests; return whether this worker serves a run.

        It does not if it is itself the process of a supervisor, which it serves here, to its end.
        Processes that import the release start here, so that no test waits for them.
        """
        self.shared_runs = SharedRuns(self)
        can_fork = not (self.shared_runs.is_server or self.shared_runs.starts_processes)
        self.freeze_for_forks(session, can_fork)
        if self.shared_runs.is_server:
            self.shared_runs.serve(self.pipe)
            return False
        if not self.shared_runs.starts_processes:
            return True
        started = [self._add_supervisor() for _ in range(self.settings.jobs)]
        answers = [next(each.pipe.iterate_lines(), b"its supervisor ended") for each in started]
        if problems := [answer.decode() for answer in answers if answer != STARTED]:
            words = "this release uses the GPU from its import on, so no fork can, and"
            self.send_message(StartFailure(f"{words} {problems[0]}"))
        return not problems

    # Messages

    def send_message(self, message: msgspec.Struct) -> None:
        self.pipe.send(msgspec.json.encode(message))

    def receive_requests(self, request_type: Any) -> list[Any]:
        """Return the requests that have arrived; block until there is input."""
        return [msgspec.json.decode(line, type=request_type) for line in self.pipe.receive_lines()]

    # Forks

    def serve_forks(self) -> None:
        """Serve requests until the run closes its pipe."""
        # Imported C code resets it, and a message to a supervisor that has ended must raise.
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        serve_until(lambda: self.pipe.is_peer_closed, self._list_receivers)

    def _list_receivers(self) -> Receivers:
        # The run's requests come last: passing one on may retire a supervisor.
        receive = self._receive_from_supervisor
        supervisors: Receivers = {each.pipe: partial(receive, each) for each in self._supervisors}
        return {**supervisors, self.pipe: self.accept_requests}

    def accept_requests(self) -> None:
        """Pass each request that has arrived to a supervisor."""
        for request in self.receive_requests(self.request_type):
            self.dispatch_request(request)

    def run_request(self, request: Any) -> SideResult:
        """In a supervisor, run a request in a process of its own, or in one for many."""
        if self.settings.shares_processes:
            return self.shared_runs.run(request)
        self.prepare_run(request)
        run = self.make_run(request)
        return self.run_in_own_process(run.files.request, run.test, run.files.toggles)

    def prepare_run(self, request: Any) -> None:
        """In a supervisor, before each fork, prepare what the fork would have to."""

    def make_run(self, request: Any) -> SharedRun:
        """Make the run of a request, in the process that runs it."""
        raise NotImplementedError

    def needs_new_process(self, request: Any) -> bool:
        """Return whether a process that has run another request cannot run this one."""
        return False

    def repeat_doubtful_run(
        self, request: Any, side: SideResult, run_anew: Callable[[Any], SideResult]
    ) -> SideResult:
        """Return the result of a run in a process that had run others.

        If what they left could explain it, this is the result of `run_anew`, in a new process.
        """
        raise NotImplementedError

    def wait_for_process(self, request: Any, wait: Callable[[], float]) -> Any:
        """Wait until a process that imports the release is ready; return the request to run."""
        wait()
        return request

    def learn_from_run(self, request: Any) -> None:
        """In a supervisor, after the reply, take over what makes later runs faster."""

    def make_reply(self, request: Any, side: SideResult) -> msgspec.Struct:
        """Make the message to the run about a request's result."""
        raise NotImplementedError

    def find_supervisor_kind(self, request: Any) -> object:
        """Return the kind of supervisor that serves a request; by default there is one."""
        return None

    def dispatch_request(self, request: Any) -> None:
        encoded = msgspec.json.encode(request)
        starts_processes = self.settings.shares_processes and self.shared_runs.starts_processes
        kind = None if starts_processes else self.find_supervisor_kind(request)
        idle = [each for each in self._supervisors if each.pending_request is None]
        for supervisor in [each for each in idle if each.kind == kind]:
            try:
                supervisor.pipe.send(encoded)
            except BrokenPipeError:  # the supervisor ended while it was idle
                self._retire_supervisor(supervisor)
            else:
                supervisor.pending_request = request
                return
        supervisor = self._add_supervisor(kind)
        supervisor.pending_request = request
        with contextlib.suppress(BrokenPipeError):  # it has just ended; its pipe reports that
            supervisor.pipe.send(encoded)

    def _add_supervisor(self, kind: object = None) -> supervision.Supervisor:
        self._supervisor_count += 1
        supervisor = supervision.fork_supervisor(self._serve_as_supervisor)
        supervisor.kind = kind
        self._supervisors.append(supervisor)
        return supervisor

    def run_in_own_process(
        self, request: TestRequest, test: Callable[[], SideResult], toggles: dict[str, str]
    ) -> SideResult:
        """Run a test in a process of its own, without the supervisor's pipes."""
        files = supervision.TestFiles(self.folder, request, toggles, self.run_folder)

        def run_without_pipe() -> SideResult:
            self.pipe.close()
            return test()

        return supervision.run_supervised_test(run_without_pipe, files)

    def renew_supervisors(self) -> None:
        """Replace the supervisors by forks of this process's present state."""
        for supervisor in list(self._supervisors):
            supervisor.is_retiring = True
            if supervisor.pending_request is None:
                self._retire_supervisor(supervisor)

    def _serve_as_supervisor(self, pipe: PipeEnd) -> None:
        """Serve requests as a supervisor."""
        for other in self._supervisors:
            other.pipe.close()
            other.process.close()  # else a test could tell its lane by its open descriptors
        self.pipe.close()
        self.pipe = pipe
        self.run_folder = self.make_run_folder(self._supervisor_count)
        # Each item runs in at least one fork.
        if len(self.items) >= preloading.FORKS_TO_REPAY_COLLAPSE:
            preloading.collapse_into_huge_pages()
        if self.settings.shares_processes:
            self.shared_runs.report_start(pipe)
        while not pipe.is_peer_closed:
            for request in self.receive_requests(self.request_type):
                try:
                    side = self.run_request(request)
                except Exception as error:  # becomes the test's result; the supervisor then ends
                    os.close(pipe.read_end)  # it receives nothing more
                    side = supervision.make_lost_result(f"{type(error).__name__}: {error}")
                    side.detail = traceback.format_exc()
                    self.send_message(self.make_reply(request, side))
                    raise
                if self.is_worn_out:
                    os.close(pipe.read_end)  # before the reply, so that the worker forks another
                self.send_message(self.make_reply(request, side))
                if self.is_worn_out:
                    return
                if self.settings.shares_processes:
                    self.shared_runs.start_ahead()
                self.learn_from_run(request)

    def _receive_from_supervisor(self, supervisor: supervision.Supervisor) -> None:
        for reply in supervisor.pipe.receive_lines():
            if reply == STARTED:
                continue
            supervisor.pending_request = None
            self.pipe.send(reply)
        if supervisor.pipe.is_peer_closed:
            request, supervisor.pending_request = supervisor.pending_request, None
            how = self._retire_supervisor(supervisor)
            if request is not None:
                self.send_message(self.make_reply(request, supervision.make_lost_result(how)))
        elif supervisor.is_retiring and supervisor.pending_request is None:
            self._retire_supervisor(supervisor)

    def _retire_supervisor(self, supervisor: supervision.Supervisor) -> str:
        self._supervisors.remove(supervisor)
        return supervisor.describe_exit()


def make_choices(toggle_directions: list[tuple[str, str]]) -> tuple[ToggleChoice, ...]:
    known = {toggle.id: toggle for toggle in cells.load_registry()}
    return tuple(
        ToggleChoice(known[toggle], Direction(direction)) for toggle, direction in toggle_directions
    )


def _collect_before_forks(items: list[pytest.Item]) -> list[Callable[[], object]]:
    """Return the functions that the collected tests need to run once, before the forks."""
    marks = (mark for item in items for mark in item.iter_markers(plugin.BEFORE_FORKS_MARKER))
    return list(dict.fromkeys(ready for mark in marks for ready in mark.kwargs.values()))


@settings(max_examples=1, database=None)
@given(strategies.none())
def _draw_first_example(_: None) -> None:
    """Draw an example now: a process's first one makes Hypothesis scan all imported modules."""


def run_worker(
    session_type: type[WorkerSession[SettingsT]],
    settings_type: type[SettingsT],
    pytest_arguments: Sequence[str] = (),
) -> NoReturn:
    """Run a worker, with `pytest_arguments` added to the arguments of every worker."""
    pipe = PipeEnd(*map(int, sys.argv[1:]))
    preloading.pause_gc_for_imports()
    processes.adopt_orphans()  # the children of killed supervisors
    code: int = 0
    try:
        import_origins.check_origins()
        import_origins.install_check(bootstrap.exit_process)
        worker_settings = msgspec.json.decode(os.environ[SETTINGS_VARIABLE], type=settings_type)
        worker = session_type(worker_settings, pipe)
        leaves_device = session_type.only_forks_use_device and not worker_settings.is_shared_process
        if worker_settings.device == "cuda" and leaves_device:
            device.defer_cuda_to_forks()
        worker.folder.mkdir(parents=True, exist_ok=True)
        live_engine.engine.recorder.set_folder(worker.folder / "attestations")
        # No capture and no faulthandler here: each test's own process has both.
        ours = ["-s", "-p", "no:faulthandler", "-p", "no:cacheprovider", "-p", "no:xdist"]
        # pytest warns that this module imported Hypothesis before it; that is harmless.
        ours += ["-W", "ignore::pytest.PytestAssertRewriteWarning", *pytest_arguments]
        ours += ["-p", plugin.__name__, "--continue-on-collection-errors", "--tb=native"]
        ours += ["--device", worker_settings.device, *worker_settings.pytest_arguments]
        with RUNS.record(EVERYBODY):  # imports, hooks of a conftest, what runs before the forks
            code = int(preloading.with_large_stack(lambda: pytest.main(ours, plugins=[worker])))
        if not hasattr(worker, "items"):
            problems = worker.problems or [f"pytest ended with {pytest.ExitCode(code).name}"]
            worker.send_message(
                StartFailure("\n".join(problems), code == pytest.ExitCode.USAGE_ERROR)
            )
    except UnfixError as error:
        wrong_call = not isinstance(error, NotReadyError)
        pipe.send(msgspec.json.encode(StartFailure(str(error), wrong_call)))
    except BrokenPipeError:
        pass  # the run has ended
    sys.stdout.flush()
    processes.kill_descendants(os.getpid())
    os._exit(code)
