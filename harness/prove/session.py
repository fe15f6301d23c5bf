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
from _pytest.config import ConftestImportFailure
from hypothesis import given, settings, strategies

from harness import device, forking, processes
from harness.errors import NotReady, UnfixError
from harness.guards import cells, plugin, unfit
from harness.lines import Line
from harness.patching import kernels, live
from harness.patching.plan import Choice, Direction
from harness.prove import body
from harness.prove import keeper as keepers
from harness.prove.messages import AnySetting, Failed, Order
from harness.store.prove.values import Side

Told = TypeVar("Told", bound=AnySetting)


class Session(Generic[Told]):
    """A pytest plugin that takes over where pytest would run the tests."""

    wants: ClassVar[Any]  # the shape of what a keeper is given
    items: list[pytest.Item]  # once they are collected
    forks_alone = True  # what runs on a GPU does so in forks: this process leaves it to them

    def __init__(self, setting: Told, line: Line) -> None:
        self.setting = setting
        self.line = line
        self.started = time.time()
        self.folder = Path(setting.folder)
        self.listener = body.Listener()
        self.problems: list[str] = []
        self._keepers: list[keepers.Keeper] = []

    def pytest_configure(self, config: pytest.Config) -> None:
        config.pluginmanager.register(self.listener)
        if not config.stash.get(plugin.PREPARED, False):
            plugin.prepare(config)

    def pytest_sessionstart(self) -> None:
        """While little is imported: see `_first_example`."""
        with contextlib.suppress(ImportError):
            importlib.import_module("numpy")  # whose random numbers it looks for as well
        _first_example()

    def settle(self, session: pytest.Session, forks: bool = True) -> None:
        """All is imported and collected; what comes after pytest hears of no more."""
        manager, idle = session.config.pluginmanager, ["terminalreporter"]
        if not any("caplog" in getattr(item, "fixturenames", ()) for item in self.items):
            idle.append("logging-plugin")  # six times a test it goes through all loggers there are
        for plugin_ in filter(None, map(manager.get_plugin, idle)):
            manager.unregister(plugin_)
        session.config.option.tbstyle = "value"  # `body.traceback_of` makes the traceback
        if not forks:
            gc.freeze()  # what is imported stays
            gc.enable()
            return
        for ready in _wanted_before(self.items):
            ready()
        if (checking := sys.modules.get("harness.checking")) is not None:
            checking.make_ready()  # suites that check kernels have imported it
        for _ in kernels.loaded_kernels():
            pass  # what its forks need not look through
        forking.settle()

    # Collecting

    @pytest.hookimpl(wrapper=True)
    def pytest_load_initial_conftests(self) -> Generator[None, Any, None]:
        """One that fails is met again where its folder is collected: the others go on."""
        with contextlib.suppress(ConftestImportFailure, SystemExit):
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

    def fit(self, items: list[pytest.Item]) -> list[pytest.Item]:
        """Those that can be run; the others are said."""
        for item in items:
            if why := item.stash.get(unfit.REASON, ""):
                self.problems.append(f"{item.nodeid} cannot be run: {why}")
        return [item for item in items if unfit.REASON not in item.stash]

    def refuse_without_forks(self) -> bool:
        """Say so, and give True, where no fork can use the device."""
        if device.forks_can_use_it():
            return False
        words = "no fork of a process that has imported this release can use the GPU"
        self.say(Failed(f"{words}: it is in use from the import on; --device cpu runs"))
        return True

    # Talking

    def say(self, said: msgspec.Struct) -> None:
        self.line.say(msgspec.json.encode(said))

    def heard(self, kind: Any) -> list[Any]:
        """The orders that have come, of such shapes; blocks until there is something."""
        return [msgspec.json.decode(line, type=kind) for line in self.line.heard()]

    # Forks

    def serve_forks(self) -> None:
        """Until the run is gone: nobody wants the rest then."""
        while not self.line.over:
            keepers = {each.line.read_end: each for each in self._keepers}
            for end in select.select([*keepers, self.line.read_end], [], [])[0]:
                if end == self.line.read_end:
                    self.take_orders()
                else:
                    self._hear(keepers[end])

    def take_orders(self) -> None:
        """Give each that has come to a keeper."""
        for wanted in self.heard(self.wants):
            self.give(wanted)

    def run(self, wanted: Any) -> Side:
        """In a keeper: have it run, `alone`."""
        raise NotImplementedError

    def answer(self, wanted: Any, side: Side) -> msgspec.Struct:
        """What the run is told of it."""
        raise NotImplementedError

    def give(self, wanted: Any) -> None:
        told = msgspec.json.encode(wanted)
        for keeper in [each for each in self._keepers if each.wanted is None]:
            try:
                keeper.line.say(told)
            except BrokenPipeError:  # it ended while it had nothing to do
                self._retire(keeper)
            else:
                keeper.wanted = wanted
                return
        keeper = keepers.start(self._keep)
        self._keepers.append(keeper)
        keeper.wanted = wanted
        with contextlib.suppress(BrokenPipeError):  # it has just ended, which is heard
            keeper.line.say(told)

    def alone(self, order: Order, test: Callable[[], Side], toggles: dict[str, str]) -> Side:
        """Have a test run in a process of its own, which holds none of our pipes."""

        def alone() -> Side:
            self.line.close()
            return test()

        return keepers.keep(alone, keepers.Place(self.folder, order, toggles))

    def renew(self) -> None:
        """What comes next is run by keepers that have what this process has by now."""
        for keeper in list(self._keepers):
            keeper.last = True
            if keeper.wanted is None:
                self._retire(keeper)

    def _keep(self, line: Line) -> None:
        """A keeper's life."""
        for other in self._keepers:
            other.line.close()
        self.line.close()
        self.line = line
        if len(self.items) >= forking.MANY:  # each is forked at least once
            forking.enlarge_pages()
        while not line.over:
            for wanted in self.heard(self.wants):
                try:
                    side = self.run(wanted)
                except Exception as error:  # told as what became of the test; then it ends
                    os.close(line.read_end)  # it is given nothing more
                    side = keepers.lost(f"{type(error).__name__}: {error}")
                    side.detail = traceback.format_exc()
                    self.say(self.answer(wanted, side))
                    raise
                self.say(self.answer(wanted, side))

    def _hear(self, keeper: keepers.Keeper) -> None:
        for said in keeper.line.heard():
            keeper.wanted = None
            self.line.say(said)
        if keeper.line.over:
            wanted, keeper.wanted = keeper.wanted, None
            how = self._retire(keeper)
            if wanted is not None:
                self.say(self.answer(wanted, keepers.lost(how)))
        elif keeper.last and keeper.wanted is None:
            self._retire(keeper)

    def _retire(self, keeper: keepers.Keeper) -> str:
        self._keepers.remove(keeper)
        return keeper.ended()


def choices(under: list[tuple[str, str]]) -> tuple[Choice, ...]:
    known = {toggle.id: toggle for toggle in cells.registry()}
    return tuple(Choice(known[toggle], Direction(direction)) for toggle, direction in under)


def _wanted_before(items: list[pytest.Item]) -> list[Callable[[], object]]:
    """What tests want done once, before they are forked; nothing for those not asked for."""
    marks = (mark for item in items for mark in item.iter_markers(plugin.BEFORE_FORKS))
    return list(dict.fromkeys(ready for mark in marks for ready in mark.kwargs.values()))


@settings(max_examples=1, database=None)
@given(strategies.none())
def _first_example(_: None) -> None:
    """Hypothesis' first example in a process looks through all that is imported by then."""


def main(kind: type[Session[Told]], setting: type[Told], words: Sequence[str] = ()) -> NoReturn:
    """A worker's life; `words` are pytest's, besides those that every worker needs."""
    line = Line(*map(int, sys.argv[1:]))
    forking.importing()
    processes.adopt_orphans()  # of a keeper that was ended
    code: int = 0
    try:
        told = msgspec.json.decode(os.environ["UNFIX_WORKER"], type=setting)
        if told.device != "cpu" and kind.forks_alone:
            device.leave_to_forks()
        worker = kind(told, line)
        worker.folder.mkdir(parents=True, exist_ok=True)
        live.engine.recorder.leave_in(worker.folder / "attestations")
        # Nothing is captured and no faulthandler is set: each test's own process does both.
        ours = ["-s", "-p", "no:faulthandler", "-p", "no:cacheprovider", "-p", "no:xdist"]
        # This module has imported Hypothesis before pytest could, which is no matter.
        ours += ["-W", "ignore::pytest.PytestAssertRewriteWarning", *words]
        ours += ["-p", plugin.__name__, "--continue-on-collection-errors", "--tb=native"]
        ours += ["--device", told.device, *told.words]
        code = int(forking.with_room(lambda: pytest.main(ours, plugins=[worker])))
        if not hasattr(worker, "items"):
            problems = worker.problems or [f"pytest ended with {pytest.ExitCode(code).name}"]
            worker.say(Failed("\n".join(problems), code == pytest.ExitCode.USAGE_ERROR))
    except UnfixError as error:
        wrong_call = not isinstance(error, NotReady)
        line.say(msgspec.json.encode(Failed(str(error), wrong_call)))
    except BrokenPipeError:
        pass  # the run is gone
    sys.stdout.flush()
    processes.end_all_below(os.getpid())
    os._exit(code)
