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

from harness.core import machine, preloading
from harness.core.errors import NotReadyError, UnfixError
from harness.fixes.registry.schema import Toggle
from harness.guards import cells, plugin
from harness.kernels import cpu
from harness.patching import live_engine
from harness.runs.fuzz import code_lines, regressions
from harness.runs.fuzz.messages import (
    CodeFile,
    FuzzTask,
    FuzzTestsCollected,
    FuzzWorkerSettings,
    TimeSlice,
    TimeSliceEnded,
)
from harness.runs.fuzz.node_ids import get_node_id
from harness.runs.fuzz.time_slice_run import TimeSliceRun
from harness.store.prove.values import SideResult
from harness.toggles import ToggleContext
from harness.workers.messages import StartFailure, TestRequest
from harness.workers.pytest_session import WorkerSession, make_choices, run_worker


class FuzzWorker(WorkerSession[FuzzWorkerSettings]):
    """One that runs slices of tests."""

    request_type = TimeSlice

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.problems.append(f"{report.nodeid} cannot be collected: {report.longreprtext}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = self.filter_runnable(session.items)
        under = make_choices(self.settings.under)
        try:
            with warnings.catch_warnings(action="ignore"), ToggleContext(under):
                pass
        except UnfixError as error:
            names = ", ".join(name for name, _ in self.settings.under)
            words = f"{names} cannot be put into a living process: {error}"
            self.send_message(
                StartFailure(words, is_usage_error=not isinstance(error, NotReadyError))
            )
            return True
        session.config.stash[plugin.APPLIED_CHANGES] = under
        session.config.stash[regressions.WITHOUT_REGRESSIONS] = True
        code, files = self._collect_code_files(self.items, [choice.toggle for choice in under])
        self.tests = [
            FuzzTask(number, get_node_id(item), explain_left_out(item), files[item.path.parent])
            for number, item in enumerate(self.items)
        ]
        if self.refuse_without_forks():
            return True
        self.freeze_for_forks(session)
        self.send_message(
            FuzzTestsCollected(
                tests=self.tests,
                code_files=code,
                release=str(live_engine.engine.sources.version),
                seconds=time.time() - self.started,
                versions=collect_versions(),
                problems=self.problems,
            )
        )
        self.serve_forks()
        return True

    def _collect_code_files(
        self, items: list[pytest.Item], toggles: list[Toggle]
    ) -> tuple[list[CodeFile], dict[Path, list[str]]]:
        """The files of all toggles that a folder's tests guard, and of those that are put in."""
        by_folder: dict[Path, dict[str, Toggle]] = {}
        for item in items:
            known = by_folder.setdefault(item.path.parent, {each.id: each for each in toggles})
            marks = cells.read_guard_marks(item)
            known.update((each.id, each) for each in (marks.guarded if marks else ()))
        files: dict[Path, list[str]] = {}
        code: dict[str, CodeFile] = {}
        for folder, known in by_folder.items():
            found = code_lines.collect_code_files(map(cells.find_toggle_state, known.values()))
            files[folder] = [file.path for file in found]
            for file in found:
                known_file = code.setdefault(file.path, file)
                known_file.toggled_lines = sorted({*known_file.toggled_lines, *file.toggled_lines})
        return sorted(code.values(), key=lambda file: file.name), files

    # Serving

    def run_request(self, time_slice: TimeSlice) -> SideResult:
        compile_patched_code(self.items[time_slice.test_number])
        order = TestRequest(
            time_slice.test_number, time_slice.serial, time_slice.end_after, time_slice.memory
        )
        side = self.run_in_own_process(
            order, functools.partial(self._run_time_slice, time_slice), {}
        )
        with contextlib.suppress(FileNotFoundError):  # of a slice that died
            cpu.preload_programs(
                msgspec.json.decode(self._locate_programs(time_slice).read_bytes())
            )
        return side

    def _run_time_slice(self, time_slice: TimeSlice) -> SideResult:
        """In its own process, where most of what is made is gone without a collection."""
        preloading.raise_gc_thresholds()
        item, files = (
            self.items[time_slice.test_number],
            self.tests[time_slice.test_number].covered_files,
        )
        watched = TimeSliceRun(item, time_slice, self.folder, files)
        side = watched.run(self.recorder, Path(self.settings.corpus))
        self._locate_programs(time_slice).write_bytes(
            msgspec.json.encode(cpu.list_loaded_programs())
        )
        return side

    def _locate_programs(self, time_slice: TimeSlice) -> Path:
        """Those that a slice's kernels needed, for the slices after it to begin with."""
        return self.folder / f"{time_slice.serial}.programs"

    def make_reply(self, time_slice: TimeSlice, side: SideResult) -> TimeSliceEnded:
        return TimeSliceEnded(
            serial=time_slice.serial,
            outcome=side.outcome.value,
            headline=side.headline,
            detail=side.detail,
            example=side.example,
            left=side.left,
        )


def explain_left_out(item: Any) -> str:
    """Why a test cannot be fuzzed; nothing if it can."""
    if not hasattr(getattr(item, "obj", None), "hypothesis"):
        return "it draws no examples"
    for mark in item.iter_markers("xfail"):
        if not mark.args or any(mark.args):
            return f"it is expected to fail here: {mark.kwargs.get('reason', '')}"
    for mark in item.iter_markers("skip"):
        return str(mark.kwargs.get("reason", "it is skipped"))
    return ""


def compile_patched_code(item: pytest.Item) -> None:
    """Have the patched code made here once, for all the forks that run it."""
    marks = cells.read_guard_marks(item)
    with (
        warnings.catch_warnings(action="ignore"),
        ToggleContext(item.config.stash[plugin.APPLIED_CHANGES]),
        cells.revert_where_present(marks.always_reverted if marks else ()),
    ):
        pass


def collect_versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in (*machine.RECORDED_PACKAGES, "hypothesis"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


if __name__ == "__main__":
    run_worker(FuzzWorker, FuzzWorkerSettings)
