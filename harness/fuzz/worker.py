"""A worker: one process of a release's own Python, which imports SGLang once and forks a slice.

It is a pytest session that stops where the tests would be run, as that of the proof is; here it
takes every test that Hypothesis draws examples for, whatever it guards.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.metadata
import json
import os
import platform
import select
import sys
import time
import warnings
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest

from harness import machine
from harness.errors import NotReady, UnfixError
from harness.fuzz import code_lines, regressions
from harness.fuzz.nodes import node_of
from harness.fuzz.slices import Watched
from harness.fuzz.values import CodeFile, Collected, Ended, Failed, Said, Setting, Slice, Task
from harness.guards import cells, plugin
from harness.patching import live
from harness.patching.plan import Choice, Direction
from harness.prove import body, keeper, processes
from harness.prove.messages import Order
from harness.registry.schema import Toggle
from harness.store.records import Side
from harness.toggles import Toggled


class Line:
    """What is said to the run, and the slices that it wants."""

    def __init__(self, read: int, write: int) -> None:
        self.read_end, self._write = read, write
        self._rest = b""
        self.over = False

    def say(self, said: Said) -> None:
        text = msgspec.json.encode(said) + b"\n"
        while text:
            text = text[os.write(self._write, text) :]

    def slices(self) -> list[Slice]:
        data = os.read(self.read_end, 1 << 16)
        self.over = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [msgspec.json.decode(line, type=Slice) for line in lines]

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
        self.items: list[pytest.Item] | None = None
        self.tests: list[Task] = []

    def pytest_configure(self, config: pytest.Config) -> None:
        config.pluginmanager.register(self.listener)
        if not config.stash.get(plugin.PREPARED, False):
            plugin.prepare(config)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.problems.append(f"{report.nodeid} cannot be collected: {report.longreprtext}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = list(session.items)
        under = choices(self.setting.under)
        try:
            with warnings.catch_warnings(action="ignore"), Toggled(under):
                pass
        except UnfixError as error:
            names = ", ".join(name for name, _ in self.setting.under)
            words = f"{names} cannot be put into a living process: {error}"
            self.line.say(Failed(words, wrong_call=not isinstance(error, NotReady)))
            return True
        session.config.stash[plugin.UNDER] = under
        session.config.stash[regressions.LEAVE_OUT] = True
        code, files = self._code(self.items, [choice.toggle for choice in under])
        self.tests = [
            Task(number, node_of(item), left_out(item), files[item.path.parent])
            for number, item in enumerate(self.items)
        ]
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        session.config.pluginmanager.unregister(reporter)
        one_thread()
        # What is imported stays: a collection in a fork need not look at it, nor copy its pages.
        gc.collect()
        gc.freeze()
        self.line.say(
            Collected(
                tests=self.tests,
                code=code,
                release=str(live.engine.sources.version),
                seconds=time.time() - self.started,
                versions=versions(),
                problems=self.problems,
            )
        )
        self._serve()
        return True

    def _code(
        self, items: list[pytest.Item], under: list[Toggle]
    ) -> tuple[list[CodeFile], dict[Path, list[str]]]:
        """The files of all toggles that a folder's tests guard, and of those that are put in."""
        by_folder: dict[Path, dict[str, Toggle]] = {}
        for item in items:
            known = by_folder.setdefault(item.path.parent, {each.id: each for each in under})
            marks = cells.marked(item)
            known.update((each.id, each) for each in (marks.guards if marks else ()))
        files: dict[Path, list[str]] = {}
        code: dict[str, CodeFile] = {}
        for folder, toggles in by_folder.items():
            found = code_lines.of_findings(map(cells.state_of, toggles.values()))
            files[folder] = [file.path for file in found]
            for file in found:
                known_file = code.setdefault(file.path, file)
                known_file.toggled = sorted({*known_file.toggled, *file.toggled})
        return sorted(code.values(), key=lambda file: file.name), files

    # Serving

    def _serve(self) -> None:
        running: dict[int, tuple[Order, int]] = {}  # by the keeper's pidfd
        while not self.line.over:
            ready, _, _ = select.select([*running, self.line.read_end], [], [])
            for end in ready:
                if end == self.line.read_end:
                    for asked in self.line.slices():
                        handle, order, pid = self._fork(asked)
                        running[handle] = order, pid
                else:
                    self._reap(end, *running.pop(end))

    def _fork(self, asked: Slice) -> tuple[int, Order, int]:
        assert self.items is not None
        item, files = self.items[asked.number], self.tests[asked.number].files
        build(item)
        order = Order(asked.number, asked.serial, asked.end_after, asked.memory)

        def test() -> Side:
            self.line.close()
            watched = Watched(item, asked, self.folder, files)
            return watched.run(self.listener, Path(self.setting.corpus))

        pid = keeper.start(test, keeper.Place(self.folder, order, {}))
        return os.pidfd_open(pid), order, pid

    def _reap(self, handle: int, order: Order, pid: int) -> None:
        os.close(handle)
        _, status = os.waitpid(pid, 0)
        side = keeper.read(self.folder, order, os.waitstatus_to_exitcode(status))
        self.line.say(
            Ended(
                serial=order.serial,
                outcome=side.outcome.value,
                headline=side.headline,
                detail=side.detail,
                example=side.example,
                left=side.left,
            )
        )


def choices(under: list[tuple[str, str]]) -> tuple[Choice, ...]:
    known = {toggle.id: toggle for toggle in cells.registry()}
    return tuple(Choice(known[toggle], Direction(direction)) for toggle, direction in under)


def left_out(item: Any) -> str:
    """Why a test cannot be fuzzed; nothing if it can."""
    if not hasattr(getattr(item, "obj", None), "hypothesis"):
        return "it draws no examples"
    for mark in item.iter_markers("xfail"):
        if not mark.args or any(mark.args):
            return f"it is expected to fail here: {mark.kwargs.get('reason', '')}"
    for mark in item.iter_markers("skip"):
        return str(mark.kwargs.get("reason", "it is skipped"))
    return ""


def build(item: pytest.Item) -> None:
    """Have the patched code made here once, for all the forks that run it."""
    marks = cells.marked(item)
    with (
        warnings.catch_warnings(action="ignore"),
        Toggled(item.config.stash[plugin.UNDER]),
        cells.without(marks.without if marks else ()),
    ):
        pass


def one_thread() -> None:
    """torch's own threads do not outlive a fork, and a child waits for them for ever."""
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in (*machine.PACKAGES, "hypothesis"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


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
        if worker.items is None:
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
