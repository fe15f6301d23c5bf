"""A worker that forks slices of the tests that draw examples, whatever they guard."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import platform
import time
import warnings
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness import forking, machine, native
from harness.errors import NotReady, UnfixError
from harness.fuzz import code_lines, regressions
from harness.fuzz.nodes import node_of
from harness.fuzz.slices import Watched
from harness.fuzz.values import CodeFile, Collected, Ended, Setting, Slice, Task
from harness.guards import cells, plugin
from harness.patching import live
from harness.prove.messages import Failed, Order
from harness.prove.session import Session, choices, main
from harness.registry.schema import Toggle
from harness.store.prove.values import Side
from harness.toggles import Toggled


class Worker(Session[Setting]):
    """One that runs slices of tests."""

    wants = Slice

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.problems.append(f"{report.nodeid} cannot be collected: {report.longreprtext}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = self.fit(session.items)
        under = choices(self.setting.under)
        try:
            with warnings.catch_warnings(action="ignore"), Toggled(under):
                pass
        except UnfixError as error:
            names = ", ".join(name for name, _ in self.setting.under)
            words = f"{names} cannot be put into a living process: {error}"
            self.say(Failed(words, wrong_call=not isinstance(error, NotReady)))
            return True
        session.config.stash[plugin.UNDER] = under
        session.config.stash[regressions.LEAVE_OUT] = True
        code, files = self._code(self.items, [choice.toggle for choice in under])
        self.tests = [
            Task(number, node_of(item), left_out(item), files[item.path.parent])
            for number, item in enumerate(self.items)
        ]
        if self.refuse_without_forks():
            return True
        self.settle(session)
        self.say(
            Collected(
                tests=self.tests,
                code=code,
                release=str(live.engine.sources.version),
                seconds=time.time() - self.started,
                versions=versions(),
                problems=self.problems,
            )
        )
        self.serve_forks()
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

    def run(self, wanted: Slice) -> Side:
        build(self.items[wanted.number])
        order = Order(wanted.number, wanted.serial, wanted.end_after, wanted.memory)
        side = self.alone(order, functools.partial(self._slice, wanted), {})
        with contextlib.suppress(FileNotFoundError):  # of a slice that died
            native.load(msgspec.json.decode(self._programs(wanted).read_bytes()))
        return side

    def _slice(self, asked: Slice) -> Side:
        """In its own process, where most of what is made is gone without a collection."""
        forking.collect_seldom()
        item, files = self.items[asked.number], self.tests[asked.number].files
        watched = Watched(item, asked, self.folder, files)
        side = watched.run(self.listener, Path(self.setting.corpus))
        self._programs(asked).write_bytes(msgspec.json.encode(native.needed()))
        return side

    def _programs(self, asked: Slice) -> Path:
        """Those that a slice's kernels needed, for the slices after it to begin with."""
        return self.folder / f"{asked.serial}.programs"

    def answer(self, wanted: Slice, side: Side) -> Ended:
        return Ended(
            serial=wanted.serial,
            outcome=side.outcome.value,
            headline=side.headline,
            detail=side.detail,
            example=side.example,
            left=side.left,
        )


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


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in (*machine.PACKAGES, "hypothesis"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


if __name__ == "__main__":
    main(Worker, Setting)
