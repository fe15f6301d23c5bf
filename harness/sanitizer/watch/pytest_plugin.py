"""A pytest plugin: each test runs with its kernels under check, and a report fails it.

`pytest_options` has its options, and registers it. On a machine without a GPU torch gets the
virtual one before any test is imported, so `device="cuda"` and the usual
`skipif(not torch.cuda.is_available())` need no change; kernels are compiled for this CPU. A test
has a session of its own, from its setup to its teardown; module fixtures belong to the test that
sets them up. Everything goes through pytest's own reports: xdist, `-k`, `--lf` work as ever.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Generator
from dataclasses import asdict
from typing import Any

import pytest

from harness.core import device
from harness.core.files import write_atomically
from harness.sanitizer.device.cards import CARD_VARIABLE
from harness.sanitizer.device.record import RECORD, describe_stand_ins
from harness.sanitizer.device.refusals import UnansweredName, iterate_causes
from harness.sanitizer.watch.baselines import Baseline, KnownReport
from harness.sanitizer.watch.report_files import CHECKS_VARIABLE
from harness.sanitizer.watch.signals import end_orderly_at_termination, limit_seconds
from harness.sanitizer.watch.suite_checks import SuiteChecks, TestChecks

_DEFAULT_MAX_REPORTS = 16
_WORKER_VARIABLE = "PYTEST_XDIST_WORKER"  # xdist sets it in its workers
_RECORD_SECONDS = 5.0  # between two writes of the record
_NOTHING_CHECKED = 3  # the exit code where no launch was checked, as of `unfix exec --check`


def _choose_device(requested: str | None) -> str:
    requested = requested or os.environ.get(device.DEVICE_VARIABLE)
    if requested is None:
        import torch

        requested = "cuda" if torch.cuda.is_available() else device.VIRTUAL
    os.environ[device.DEVICE_VARIABLE] = requested
    return requested


class CheckPlugin:
    """The hooks of one pytest process."""

    def __init__(self, config: pytest.Config) -> None:
        self._config, options = config, config.known_args_namespace
        self._device = _choose_device(options.sanitize_device)
        if card := options.sanitize_card:
            os.environ[CARD_VARIABLE] = card
        self._suite = SuiteChecks()
        self._timeout, self._next_record = options.sanitize_timeout, 0.0
        self._node_id = ""
        self._checks, self._options = self._read_options()
        try:
            self._baseline = Baseline(options.sanitize_baseline)
        except ValueError as error:
            raise pytest.UsageError(f"--sanitize-baseline: {error}") from None
        self._stack = contextlib.ExitStack()
        self._check: Any = None
        self._test = TestChecks()
        # What the virtual GPU had counted before the test.
        self._earlier_refusals: Counter[str] = Counter()
        self._earlier_stand_ins: Counter[str] = Counter()
        self._is_controller = bool(getattr(options, "numprocesses", None)) and (
            _WORKER_VARIABLE not in os.environ
        )
        end_orderly_at_termination()
        if not self._is_controller:
            self._prepare_process()

    def _read_options(self) -> tuple[tuple[str, ...], Any]:
        from harness.sanitizer.check.options import ALL_KERNELS, STORAGE_BOUNDS, CheckOptions
        from harness.sanitizer.cpu.arithmetic import Arithmetic
        from harness.sanitizer.violations.kinds import CHECK_NAMES

        options = self._config.known_args_namespace
        words = (options.sanitize or os.environ.get(CHECKS_VARIABLE, "")).split(",")
        if "all" in words:
            words = list(CHECK_NAMES)
        everywhere = STORAGE_BOUNDS in words
        words = ["bounds" if word == STORAGE_BOUNDS else word for word in words]
        checks = tuple(word for word in words if word not in ("", "stop")) or CHECK_NAMES
        try:
            return checks, CheckOptions(
                Arithmetic.EXACT if options.sanitize_exact else Arithmetic.CLOSE,
                checks,
                options.sanitize_max_reports or _DEFAULT_MAX_REPORTS,
                options.sanitize_all_configurations,
                frozenset([ALL_KERNELS] if everywhere else []),
            )
        except ValueError as error:
            raise pytest.UsageError(f"--sanitize: {error}") from None

    def _prepare_process(self) -> None:
        """Install the virtual GPU, and run what is launched outside of tests."""
        from harness.sanitizer.watch.host_process import HostCheckFiles

        self._files = HostCheckFiles()
        if self._device == "cuda":
            return
        from harness.sanitizer.check import session

        if self._device == device.VIRTUAL:
            from harness.sanitizer import plugins
            from harness.sanitizer.device import installation

            installation.install_device()
            plugins.load_plugin("torch").build_cuda_kernels()
        session.preload_checker()
        self._stack.enter_context(session.run_kernels_on_cpu())

    def pytest_unconfigure(self) -> None:
        self._stack.close()
        if not self._is_controller:
            self._files.write_counts()

    # A test

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: Any) -> Generator[None, Any, Any]:
        self._node_id = item.nodeid
        self._test, self._start_time = TestChecks(), time.monotonic()
        self._earlier_refusals = Counter(RECORD.refusals)
        self._earlier_stand_ins = Counter(RECORD.stand_ins)
        with contextlib.ExitStack() as stack:
            self._check = self._make_check(item)
            self._check.launches.observers.append(self._count_launch)
            stack.callback(self._check.close)
            self._check.open(stack)
            result = yield
        self._check = None
        self._files.write_counts()
        if time.monotonic() >= self._next_record:
            self._write_record()
        return result

    def _make_check(self, item: pytest.Item) -> Any:
        options = self._options
        for mark in item.iter_markers("sanitize"):
            options = options.allow_storage(**mark.kwargs)
        if self._device == "cuda":
            from harness.sanitizer.check.gpu_check import GpuCheck

            return GpuCheck(self._checks, whole_storages=bool(options.storage_kernels))
        from harness.sanitizer.watch.host_process import make_check

        return make_check(self._device, options)

    def _count_launch(self, launch: Any) -> None:
        self._files.count_launch(launch)
        launches = self._test.launches
        launches[launch.kernel] = launches.get(launch.kernel, 0) + 1
        seconds = self._test.seconds
        seconds[launch.kernel] = seconds.get(launch.kernel, 0.0) + launch.seconds
        if launch.refusal:
            self._test.refused_launches += 1
            self._test.refusals[launch.kernel] = launch.refusal_reason
        if launch.approximations:
            self._test.approximations[launch.kernel] = list(launch.approximations)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None, Any, Any]:
        return (yield from self._raise_reports())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, Any, Any]:
        return (yield from self._raise_reports())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self) -> Generator[None, Any, Any]:
        return (yield from self._raise_reports())

    def _raise_reports(self) -> Generator[None, Any, Any]:
        """Fail a phase with what its launches violated, whatever the test made of it.

        A refusal that a test caught, and answered in another way, stays the test's own business.
        """
        from harness.sanitizer.violations.exceptions import LaunchRefused, Violation

        own_error: BaseException | None = None
        result = None
        try:
            with limit_seconds(self._timeout):
                result = yield
        except (KeyboardInterrupt, pytest.exit.Exception):
            self._suite.tests[self._node_id] = self._test
            self._suite.outcomes[self._node_id] = "interrupted"
            raise
        except BaseException as error:
            own_error = error
        errors = list(self._check.launches.errors)
        self._check.discard_errors()
        self._test.configurations |= self._check.launches.configuration_counts
        violations = [error for error in errors if isinstance(error, Violation)]
        if own_error is not None:
            self._attribute_refusals(own_error)
            causes = iterate_causes(own_error)
            violations += [error for error in causes if isinstance(error, LaunchRefused)]
        harmless: list[BaseException] = []
        for violation in violations:
            report = asdict(self._files.write_violation(violation))
            report["accepted"] = self._baseline.find_reason(report)
            self._test.reports.append(report)
            if report["accepted"] or report["is_warning"]:
                harmless.append(violation)
        violations = [error for error in violations if error not in harmless]
        errors = [error for error in errors if error not in harmless]
        own_error = None if own_error in harmless else own_error
        if own_error is None and not errors:
            return result
        candidates: list[BaseException] = [*violations, *([own_error] if own_error else errors)]
        shown = candidates[0]
        if shown is own_error and not violations:
            raise own_error
        for other in violations[1:]:
            shown.add_note(f"and {other}")
        if own_error is not None and own_error is not shown:
            shown.add_note(f"the test itself ended in {type(own_error).__name__}: {own_error}")
        raise shown

    def _attribute_refusals(self, error: BaseException) -> None:
        """Refuse the test if a refusal led to its error; note those that its code caught."""
        causes = [
            str(cause) for cause in iterate_causes(error) if isinstance(cause, UnansweredName)
        ]
        self._test.add_device_refusals(causes)
        for message in RECORD.refusals - self._earlier_refusals:
            if message not in causes:
                error.add_note(f"caught before, from the virtual GPU: {message}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: Any) -> Generator[None, Any, Any]:
        report = yield
        self._test.stand_ins = dict(RECORD.stand_ins - self._earlier_stand_ins)
        report.unfix_check = self._test.to_data()
        if call.excinfo is not None and report.failed:
            error = call.excinfo.value
            if isinstance(error, self._get_check_errors()):  # the frames of the checker say nothing
                notes = [f"  {note}" for note in getattr(error, "__notes__", ())]
                report.longrepr = "\n".join([f"{type(error).__name__}: {error}", *notes])
        return report

    @staticmethod
    def _get_check_errors() -> tuple[type[BaseException], ...]:
        from harness.sanitizer.violations.exceptions import UncheckableKernel, Violation

        return Violation, UncheckableKernel

    # The run

    def pytest_report_teststatus(self, report: Any) -> Any:
        data = getattr(report, "unfix_check", None)
        if data is None or report.when != "call":
            return None
        if report.failed and data["reports"]:
            return "failed", "V", "VIOLATION"
        if report.failed and data["refusals"]:
            return "failed", "R", "REFUSED"
        if report.passed and not data["launches"] and not hasattr(report, "wasxfail"):
            return "passed", "n", ("PASSED, no kernel launched", {"yellow": True})
        return None

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        data = getattr(report, "unfix_check", None)
        if data is None:
            return
        self._suite.tests[report.nodeid] = TestChecks.from_data(data)
        outcome = self._suite.outcomes.get(report.nodeid, "passed")
        if report.outcome != "passed" and outcome == "passed":
            outcome = report.outcome
            if report.failed:
                has_reports = self._suite.tests[report.nodeid].failing_reports
                outcome = "reported" if has_reports else "failed"
                if outcome == "failed" and data["refusals"]:
                    outcome = "refused"
        self._suite.outcomes[report.nodeid] = outcome

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: Any) -> None:
        if _WORKER_VARIABLE in os.environ:
            return
        if session.exitstatus == pytest.ExitCode.OK and not self._suite.checked_launches:
            session.exitstatus = _NOTHING_CHECKED
        if self._baseline.write_new(self._suite.list_reports()):
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        if session.exitstatus == pytest.ExitCode.OK and self._list_gone():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self._write_record()

    def _list_gone(self) -> list[KnownReport]:
        kernels = [kernel for test in self._suite.tests.values() for kernel in test.launches]
        return self._baseline.list_gone(self._suite.list_reports(), kernels)

    def _write_record(self) -> None:
        """Write what is known so far: whatever ends the run, the record of its tests is there."""
        self._next_record = time.monotonic() + _RECORD_SECONDS
        file = self._config.getoption("--sanitize-record")
        if file and _WORKER_VARIABLE not in os.environ:
            known = {"device": self._device, "checks": self._checks}
            text = json.dumps({**known, "tests": self._suite.to_data()}, indent=1)
            write_atomically(file, text + "\n")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("kernels under check")
        for line in self._suite.describe(self._checks, self._options.all_configurations):
            terminalreporter.line(line)
        if self._device == device.VIRTUAL and self._suite.stand_ins:
            terminalreporter.line(describe_stand_ins(self._suite.stand_ins))
        for entry in self._list_gone():
            terminalreporter.line(
                f"gone, take it out of the baseline: {entry.kind} of {entry.kernel} ({entry.file})"
            )
        if not self._suite.checked_launches:
            terminalreporter.line("no launch was checked, so the checks say nothing")
