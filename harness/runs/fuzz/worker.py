"""A worker that forks slices of all tests that draw examples."""

from __future__ import annotations

import functools
import inspect
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

import msgspec
import pytest

from harness.core import machine, preloading
from harness.core.errors import NotReadyError, UnfixError
from harness.fixes.matching.toggle_status import ToggleState, ToggleStatus
from harness.fixes.registry.schema import Toggle
from harness.guards import cells, hypothesis_adapter, plugin
from harness.patching import live_engine
from harness.runs.fuzz import regressions
from harness.runs.fuzz.messages import (
    CodeFile,
    FuzzTask,
    FuzzTestsCollected,
    FuzzWorkerSettings,
    TimeSlice,
    TimeSliceEnded,
)
from harness.runs.fuzz.slice_files import SliceFiles
from harness.runs.fuzz.time_slice_run import TimeSliceRun
from harness.store.fuzz.values import FoundFailure
from harness.store.prove.values import SideResult
from harness.toggles import ToggleContext
from harness.workers import loaded_programs, supervisor
from harness.workers.messages import StartFailure, TestRequest
from harness.workers.pytest_session import (
    WorkerSession,
    find_decisive_line,
    make_choices,
    run_worker,
)
from harness.workers.shared_process import SharedRun
from harness.workers.supervisor import TestFiles


class FuzzWorker(WorkerSession[FuzzWorkerSettings]):
    """A pytest session that runs slices of tests in forks."""

    request_type = TimeSlice
    unrepeated: Sequence[str] = ()  # in a supervisor: failures of its last slice

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.problems.append(
                f"{report.nodeid} cannot be collected: {find_decisive_line(report)}"
            )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = self.filter_runnable(session.items)
        changes = make_choices(self.settings.under)
        try:
            with warnings.catch_warnings(action="ignore"), ToggleContext(changes):
                pass
        except UnfixError as error:
            names = ", ".join(name for name, _ in self.settings.under)
            problem = f"{names} cannot be put into a living process: {error}"
            self.send_message(StartFailure(problem, not isinstance(error, NotReadyError)))
            return True
        session.config.stash[plugin.APPLIED_CHANGES] = changes
        session.config.stash[regressions.WITHOUT_REGRESSIONS] = True
        code, files = self._collect_code_files(self.items, [choice.toggle for choice in changes])
        self.tests = [
            FuzzTask(
                number,
                regressions.get_node_id(item),
                explain_left_out(item),
                files[item.path.parent],
                self._list_unfixed_toggles(item),
            )
            for number, item in enumerate(self.items)
        ]
        if not self.choose_processes(session):
            return True
        self.send_message(
            FuzzTestsCollected(
                tests=self.tests,
                code_files=code,
                release=str(live_engine.engine.sources.version),
                seconds=time.time() - self.started,
                versions=machine.collect_versions("hypothesis"),
                problems=self.problems,
            )
        )
        self.serve_forks()
        return True

    def _list_unfixed_toggles(self, item: pytest.Item) -> list[str]:
        marks, changed = cells.read_guard_marks(item), {name for name, _ in self.settings.under}
        return [
            toggle.id
            for toggle in (marks.guarded if marks else ())
            if toggle.id not in changed
            and cells.find_toggle_state(toggle).state is ToggleState.BUGGY
        ]

    def _collect_code_files(
        self, items: list[pytest.Item], toggles: list[Toggle]
    ) -> tuple[list[CodeFile], dict[Path, list[str]]]:
        """Collect the files of the applied toggles, and of the toggles that each folder guards."""
        by_folder: dict[Path, dict[str, Toggle]] = {}
        for item in items:
            known = by_folder.setdefault(item.path.parent, {each.id: each for each in toggles})
            marks = cells.read_guard_marks(item)
            known.update((each.id, each) for each in (marks.guarded if marks else ()))
        files: dict[Path, list[str]] = {}
        code: dict[str, CodeFile] = {}
        for folder, known in by_folder.items():
            of_folder = collect_code_files(map(cells.find_toggle_state, known.values()))
            files[folder] = [file.path for file in of_folder]
            for file in of_folder:
                known_file = code.setdefault(file.path, file)
                known_file.toggled_lines = sorted({*known_file.toggled_lines, *file.toggled_lines})
        return sorted(code.values(), key=lambda file: file.name), files

    # Serving

    def run_request(self, time_slice: TimeSlice) -> SideResult:
        self.unrepeated = ()
        return super().run_request(time_slice)

    def prepare_run(self, time_slice: TimeSlice) -> None:
        if not time_slice.enable:
            compile_patched_code(self.items[time_slice.test_number])

    def make_run(self, time_slice: TimeSlice) -> SharedRun:
        request = TestRequest(
            time_slice.test_number, time_slice.serial, time_slice.end_after, time_slice.memory
        )
        return SharedRun(
            TestFiles(self.folder, request, {}),
            functools.partial(self._run_time_slice, time_slice),
        )

    def wait_for_process(self, time_slice: TimeSlice, wait: Callable[[], float]) -> TimeSlice:
        with SliceFiles(self.folder, time_slice.serial).mark_waiting():
            seconds = wait()
        return msgspec.structs.replace(
            time_slice,
            generate_until=time_slice.generate_until + seconds,
            shrink_until=time_slice.shrink_until + seconds,
        )

    def repeat_doubtful_run(
        self,
        time_slice: TimeSlice,
        side: SideResult,
        run_anew: Callable[[TimeSlice], SideResult],
    ) -> SideResult:
        """Repeat each example that failed: a failure that another slice left is none.

        What failed outside of any example has none to repeat, and stays as it is.
        """
        files = SliceFiles(self.folder, time_slice.serial)
        failing = files.list_failing_examples(side)
        if not failing or not all(failing.values()):
            return side
        first = files.read_result()
        failing_repetition: tuple[SideResult, dict[str, bytes]] | None = (
            None  # a repetition that failed
        )
        failures: list[FoundFailure] = []
        failed_again: set[str] = set()
        repeated = side
        for blob in failing.values():
            now = time.monotonic()
            repetition = msgspec.structs.replace(
                time_slice,
                first_blobs=[blob],
                generate_until=now,
                shrink_until=now + max(1.0, time_slice.shrink_until - now),
            )
            supervisor.delete_test_files(self.folder, time_slice.serial)
            repeated = run_anew(repetition)
            if keys := files.list_failing_examples(repeated):
                failed_again |= keys.keys()
                failures += files.read_failures()
                failing_repetition = repeated, files.read_all()
        if failing_repetition is not None:
            repeated, content = failing_repetition
            files.write_all(content)
        files.merge_repeat(first, failures)
        self.unrepeated = [key for key in failing if key not in failed_again]
        return repeated

    def learn_from_run(self, time_slice: TimeSlice) -> None:
        loaded_programs.preload_programs(self._locate_programs(time_slice))

    def _run_time_slice(self, time_slice: TimeSlice) -> SideResult:
        """Run a slice in its own process, without garbage collection, which would waste time."""
        preloading.raise_gc_thresholds()
        item = self.items[time_slice.test_number]
        enabled = [(name, "enable") for name in time_slice.enable]
        item.config.stash[plugin.APPLIED_CHANGES] = make_choices([*self.settings.under, *enabled])
        files = self.tests[time_slice.test_number].covered_files
        slice_run = TimeSliceRun(item, time_slice, self.folder, files)
        with loaded_programs.record_loaded_programs(self._locate_programs(time_slice)):
            return slice_run.run_slice(self.recorder, Path(self.settings.corpus))

    def _locate_programs(self, time_slice: TimeSlice) -> Path:
        """Return the compiled kernels that a slice loaded, with which later slices start."""
        return self.folder / f"{time_slice.serial}.programs"

    def make_reply(self, time_slice: TimeSlice, side: SideResult) -> TimeSliceEnded:
        return TimeSliceEnded(
            serial=time_slice.serial,
            outcome=side.outcome.value,
            headline=side.headline,
            detail=side.detail,
            example=side.example,
            left=side.left,
            unrepeated=list(self.unrepeated),
        )


def explain_left_out(item: Any) -> str:
    """Return the reason why a test cannot be fuzzed; empty if it can."""
    if not hypothesis_adapter.draws_examples(getattr(item, "obj", None)):
        return "it draws no examples"
    for mark in item.iter_markers("xfail"):
        if not mark.args or any(mark.args):
            return f"it is expected to fail here: {mark.kwargs.get('reason', '')}"
    for mark in item.iter_markers("skip"):
        return str(mark.kwargs.get("reason", "it is skipped"))
    return ""


def compile_patched_code(item: pytest.Item) -> None:
    """Compile the patched code once, for all forks that run it."""
    marks = cells.read_guard_marks(item)
    with (
        warnings.catch_warnings(action="ignore"),
        ToggleContext(item.config.stash[plugin.APPLIED_CHANGES]),
        cells.revert_where_present(marks.always_reverted if marks else ()),
    ):
        pass


def collect_code_files(statuses: Iterable[ToggleStatus]) -> list[CodeFile]:
    """Collect the files that these toggles change in a release, with the coverable lines."""
    files: dict[str, CodeFile] = {}
    for status in statuses:
        if status.state not in (ToggleState.FIXED, ToggleState.BUGGY):
            continue
        for site in status.sites:
            source, path = site.source, site.source.path
            if path not in files:
                lines = sorted(find_function_lines(compile(source.text, path, "exec")))
                files[path] = CodeFile(path, f"sglang/{path.rpartition('/sglang/')[2]}", lines, [])
            file = files[path]
            toggled = set(file.toggled_lines)
            for scope in source.find_scopes(site.target.qualname):
                first, last = scope.range().start.line + 1, scope.range().end.line + 1
                toggled |= {line for line in file.lines if first <= line <= last}
            file.toggled_lines = sorted(toggled)
    return sorted(files.values(), key=lambda file: file.name)


def find_function_lines(code: CodeType) -> set[int]:
    """Find the lines that run in calls of functions, not at the import of their module."""
    lines = set()
    if code.co_flags & inspect.CO_OPTIMIZED:
        lines = {line for _, _, line in code.co_lines() if line} - {code.co_firstlineno}
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return lines.union(*map(find_function_lines, inner))


if __name__ == "__main__":
    run_worker(FuzzWorker, FuzzWorkerSettings)
