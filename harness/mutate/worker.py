"""A worker: one process of a release's own Python, which imports SGLang once and forks each look.

It is a pytest session that stops where the tests would be run, as that of the proof is; here every
test of the suites is a guard. No fault is ever put into this process: each has a fork of its own.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from harness.errors import NotReady, UnfixError
from harness.fuzz.worker import one_thread, versions
from harness.guards import plugin
from harness.mutate import looking
from harness.mutate.looking import Guard, Looking
from harness.mutate.messages import Collected, Failed, Load, Look, Order, Said, Setting
from harness.patching import live
from harness.prove import body, keeper, messages, processes
from harness.store.records import Side

SLACK = 60.0  # seconds beyond what its guards may take, for a fork that hangs between them


class Line:
    """What is said to the run, and what it wants."""

    def __init__(self, read: int, write: int) -> None:
        self.read_end, self._write = read, write
        self._rest = b""
        self.over = False

    def say(self, said: Said) -> None:
        text = msgspec.json.encode(said) + b"\n"
        while text:
            text = text[os.write(self._write, text) :]

    def orders(self) -> list[Order]:
        data = os.read(self.read_end, 1 << 16)
        self.over = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [msgspec.json.decode(line, type=Order) for line in lines]

    def close(self) -> None:
        for end in (self.read_end, self._write):
            with contextlib.suppress(OSError):
                os.close(end)


class Worker:
    """A pytest plugin that takes over where pytest would run the tests."""

    def __init__(self, setting: Setting, line: Line, started: float) -> None:
        self.setting = setting
        self.line = line
        self.started = started
        self.folder = Path(setting.folder)
        self.listener = body.Listener()
        self.problems: list[str] = []
        self.guards: dict[int, Guard] | None = None

    def pytest_configure(self, config: pytest.Config) -> None:
        config.pluginmanager.register(self.listener)
        if not config.stash.get(plugin.PREPARED, False):
            plugin.prepare(config)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        how = "cannot be collected" if report.failed else "skips itself as a whole"
        if not report.passed:
            self.problems.append(f"{report.nodeid} {how}: {report.longreprtext}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.guards = {number: Guard(item) for number, item in enumerate(session.items)}
        for name, count in Counter(item.nodeid for item in session.items).items():
            if count > 1:
                self.problems.append(f"{count} tests are called {name}")
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        session.config.pluginmanager.unregister(reporter)
        one_thread()
        _freeze()
        self.line.say(
            Collected(
                guards=[guard.item.nodeid for guard in self.guards.values()],
                seconds=time.time() - self.started,
                release=str(live.engine.sources.version),
                versions=versions(),
                problems=self.problems,
            )
        )
        self._serve()
        return True

    def _serve(self) -> None:
        running: dict[int, tuple[Look, messages.Order, int, float]] = {}  # by the keeper's pidfd
        while not self.line.over:
            ready, _, _ = select.select([*running, self.line.read_end], [], [])
            for end in ready:
                if end != self.line.read_end:
                    self._reap(end, *running.pop(end))
                    continue
                for wanted in self.line.orders():
                    if isinstance(wanted, Load):
                        _load(wanted.modules)
                    else:
                        handle, order, pid = self._fork(wanted)
                        running[handle] = wanted, order, pid, time.monotonic()

    def _fork(self, look: Look) -> tuple[int, messages.Order, int]:
        assert self.guards is not None
        for asked in look.guards:
            with contextlib.suppress(UnfixError):  # the guard itself will meet it, and say it
                self.guards[asked.number].build()
        if not live.engine.idle:
            raise RuntimeError("a guard's toggles could not be taken out again")
        seconds = sum(asked.seconds for asked in look.guards) + SLACK
        order = messages.Order(0, look.serial, seconds, look.memory)
        looks = Looking(look, self.guards, self.folder)

        def test() -> Side:
            self.line.close()
            return looks.run(self.listener)

        about = {change.id: change.verb for change in looks.changes}
        pid = keeper.start(test, keeper.Place(self.folder, order, about))
        return os.pidfd_open(pid), order, pid

    def _reap(self, handle: int, look: Look, order: messages.Order, pid: int, begun: float) -> None:
        os.close(handle)
        _, status = os.waitpid(pid, 0)
        side = keeper.read(self.folder, order, os.waitstatus_to_exitcode(status))
        side.overhead = max(0.0, time.monotonic() - begun - side.seconds)
        self.line.say(looking.read(self.folder, look, side))


def _load(modules: list[str]) -> None:
    """Import what forks would, one by one; what does not import here is left to who needs it."""
    with warnings.catch_warnings(action="ignore"):
        for name in modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    _freeze()


def _freeze() -> None:
    """What is imported stays: a collection in a fork need not look at it, nor copy its pages."""
    gc.collect()
    gc.freeze()


def main(read: int, write: int) -> NoReturn:
    line = Line(read, write)
    processes.adopt_orphans()  # of a keeper that was ended
    started = time.time()
    code: int = 0
    try:
        setting = msgspec.json.decode(os.environ["UNFIX_WORKER"], type=Setting)
        folder = Path(setting.folder)
        folder.mkdir(parents=True, exist_ok=True)
        live.engine.recorder.leave_in(folder / "attestations")
        worker = Worker(setting, line, started)
        words = ["-s", "-p", "no:faulthandler", "-p", "no:cacheprovider", "-p", "no:xdist"]
        # This module has imported Hypothesis before pytest could, which is no matter.
        words += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        words += ["-p", plugin.__name__, "--continue-on-collection-errors", "--tb=native"]
        words += ["--device", setting.device, *setting.words]
        code = int(pytest.main(words, plugins=[worker]))
        if worker.guards is None:
            problems = worker.problems or [f"pytest ended with {pytest.ExitCode(code).name}"]
            line.say(Failed("\n".join(problems), code == pytest.ExitCode.USAGE_ERROR))
    except UnfixError as error:
        line.say(Failed(str(error), wrong_call=not isinstance(error, NotReady)))
    except BrokenPipeError:
        pass  # the run is gone
    sys.stdout.flush()
    processes.end_all_below(os.getpid())
    os._exit(code)


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
