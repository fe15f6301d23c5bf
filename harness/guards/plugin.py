"""The pytest plugin: options, both sides of a toggle, replays, and guards that do not apply.

The root conftest.py loads it, and suites/conftest.py calls `prepare_session`.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.core import device
from harness.core.errors import UnfixError
from harness.core.wording import format_count
from harness.fixes.matching.toggle_status import ToggleState
from harness.fixes.patch_plan import Direction, SourceChange, ToggleChoice
from harness.fixes.registry.schema import Toggle
from harness.guards import (
    cells,
    hypothesis_adapter,
    not_applicable,
    preparations,
    profiles,
    pytest_adapter,
    replay,
    sides,
    suite_record,
    teeth,
    unrunnable_guards,
)
from harness.guards.cells import GUARDED_STATUS
from harness.patching.import_runs import RUNS
from harness.patching.live_engine import engine
from harness.toggles import ToggleContext

IS_PREPARED = pytest.StashKey[bool]()
# Whether a runner runs each guard once for each of its toggles, on sides that it chooses.
RUNS_CELLS = pytest.StashKey[bool]()
# The changes, from a runner, for tests that have no side.
APPLIED_CHANGES = pytest.StashKey[tuple[SourceChange, ...]]()
# Whether a runner has prepared the tests that run now, so that their setup does not.
IS_PREPARED_AHEAD = pytest.StashKey[bool]()
# The guards that the run collected and never ran.
UNREPORTED = pytest.StashKey[list[str]]()
TOGGLE_PARAMETER = "unfix_toggle"
_SEED_VARIABLE = "UNFIX_SEED"
BEFORE_FORKS_MARKER = "before_forks"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("unfix")
    group.addoption("--device", choices=("auto", "cpu", "cuda", device.VIRTUAL), default="auto")
    group.addoption(
        "--profile", choices=tuple(profiles.EXAMPLES_BY_PROFILE), default=profiles.DEFAULT_PROFILE
    )
    group.addoption(
        "--teeth",
        action="store_true",
        help="run each guard with its fix applied and reverted; the second must fail",
    )
    group.addoption("--record", type=Path, metavar="FILE", help="write the outcome of each guard")
    group.addoption("--replay", metavar="BLOB", help="run one failing example again")


def pytest_configure(config: pytest.Config) -> None:
    """Prepare for `--teeth` here too, since a user's folder does not have our conftest."""
    config.addinivalue_line("markers", f"{cells.GUARDS_MARKER}(*toggles): the toggles it guards")
    config.addinivalue_line("markers", "runs_on(device): where `unfix prove` runs it by default")
    config.addinivalue_line(
        "markers", f"{BEFORE_FORKS_MARKER}(ready=…): a function to call once, before any fork"
    )
    config.addinivalue_line(
        "markers", f"{preparations.PREPARED_MARKER}(by=…, names=…): a function to call in the setup"
    )
    if config.getoption("teeth") and not config.stash.get(IS_PREPARED, False):
        prepare_session(config)


def prepare_session(config: pytest.Config) -> None:
    """Choose the device, the profile and the seed, before any suite is imported."""
    # Warnings of SGLang and of its imports do not concern a suite.
    config.addinivalue_line("filterwarnings", "ignore")
    if not hasattr(config, "workerinput"):
        try:
            device.choose_device(config.getoption("device"))
        except UnfixError as error:
            raise pytest.UsageError(str(error)) from error
        seed = config.getoption("hypothesis_seed", None)
        if seed in (None, "random"):
            seed = profiles.choose_seed("nightly" if seed else config.getoption("profile"))
        os.environ[_SEED_VARIABLE] = str(seed)
    if not device.has_gpu():  # SGLang compiles small functions, which only helps on a GPU
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    if device.get_device() == device.VIRTUAL:  # before a suite imports SGLang
        from harness.sanitizer.device import installation

        installation.install_device()
    profiles.load_profile(config.getoption("profile"))
    hypothesis_adapter.set_global_seed(int(os.environ[_SEED_VARIABLE]))
    config.stash[IS_PREPARED] = True


# Collecting


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Record the code that files of tests run: a live toggle comes too late for its results."""
    is_prepared = collector.config.stash.get(IS_PREPARED, False)
    with RUNS.record(str(collector.path) if is_prepared else ""):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> Generator[None, Any, Any]:
    """Make a test that pytest cannot build fail alone, without the rest of its file."""
    try:
        return (yield)
    except (Exception, pytest.fail.Exception) as error:
        plain = isinstance(error, UnfixError | pytest.fail.Exception)
        why = str(error) if plain else f"{type(error).__name__}: {error}"
        return unrunnable_guards.make_unbuildable_test(collector, name, obj, why)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marks = cells.read_guard_marks(metafunc.definition) if _runs_cells(metafunc.config) else None
    if marks is not None:
        ids = [toggle.id for toggle in marks.guarded]
        metafunc.fixturenames.append(TOGGLE_PARAMETER)
        metafunc.parametrize(TOGGLE_PARAMETER, marks.guarded, ids=ids, scope="module")


def _runs_cells(config: pytest.Config) -> bool:
    """Return whether each guard runs once for each of its toggles, and not on the release alone."""
    return config.stash.get(RUNS_CELLS, False) or bool(config.getoption("teeth"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    with RUNS.record(""):  # it reads much and runs nothing of SGLang
        _mark_items(config, items)


def _mark_items(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        toggle = pytest_adapter.get_parameter(item, TOGGLE_PARAMETER)
        if toggle is not None:
            item.stash[GUARDED_STATUS] = cells.find_toggle_state(toggle)
        if why := unrunnable_guards.find_unrunnable_reason(item, both_sides=_runs_cells(config)):
            item.stash[unrunnable_guards.UNRUNNABLE_REASON] = why
            continue
        marks = cells.read_guard_marks(item)
        if marks is None:
            continue
        toggles = [toggle] if toggle is not None else list(marks.guarded)
        if all(cells.find_toggle_state(toggle).state is ToggleState.ABSENT for toggle in toggles):
            names = ", ".join(toggle.id for toggle in toggles)
            reason = f"{not_applicable.NOT_APPLICABLE_PREFIX}{names}: not in this release"
            item.add_marker(pytest.mark.skip(reason=reason))
        replay.set_replayed_example(item, config.getoption("replay"), toggle is None)


# Running


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Apply the runner's changes from the first fixture of a test to its last."""
    changes = item.config.stash.get(APPLIED_CHANGES, ())
    with ToggleContext(changes) if changes else contextlib.nullcontext():
        return (yield)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Prepare a test, after pytest has seen whether a marker leaves it out."""
    if item.config.stash.get(IS_PREPARED_AHEAD, False):
        return
    preparation = preparations.read_preparation(item)
    if preparation is not None and unrunnable_guards.UNRUNNABLE_REASON not in item.stash:
        preparation.run()


@pytest.hookimpl(tryfirst=True, specname="pytest_runtest_protocol")
def pytest_runtest_protocol_of_both_sides(item: pytest.Item) -> bool | None:
    """Run both sides of a guard for `--teeth`, and report one test."""
    is_runnable = unrunnable_guards.UNRUNNABLE_REASON not in item.stash
    if not is_runnable or GUARDED_STATUS not in item.stash or RUNS_CELLS in item.config.stash:
        return None
    teeth.run_both_sides(item)
    return True


@pytest.hookimpl(specname="pytest_pyfunc_call")
def pytest_pyfunc_call_of_a_coroutine(pyfuncitem: pytest.Function) -> None:
    """Refuse a coroutine that no plugin runs. pytest's own failure would look like a bug."""
    test = pyfuncitem.obj
    if inspect.iscoroutinefunction(test) or inspect.isasyncgenfunction(test):
        raise UnfixError("it is a coroutine, and no plugin of pytest runs it")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    marks = cells.read_guard_marks(pyfuncitem)
    if marks is None:
        return (yield)
    status = pyfuncitem.stash.get(GUARDED_STATUS, None)
    with cells.revert_where_present(marks.always_reverted):
        if status is None:
            # A guarded module may query the GPU on import, which it must not do within a check.
            engine.import_targets(
                ToggleChoice(toggle, Direction.OBSERVE)
                for toggle in _select_toggles_in_release(marks)
            )
            with sides.raise_lost_device_as_failure(), replay.allow_passing_replay(pyfuncitem):
                return (yield)
            return True
        return (yield from sides.run_side(status, pyfuncitem))


def _select_toggles_in_release(marks: cells.GuardMarks) -> Iterator[Toggle]:
    states = (ToggleState.FIXED, ToggleState.BUGGY)
    return (toggle for toggle in marks.guarded if cells.find_toggle_state(toggle).state in states)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, Any]:
    report = yield
    if call.when == "setup" and (why := item.stash.get(unrunnable_guards.UNRUNNABLE_REASON, "")):
        report.outcome, report.longrepr = "failed", why
        vars(report).pop("wasxfail", None)  # or pytest would count it as an expected failure
        return report
    if report.failed and call.excinfo is not None and item.get_closest_marker(cells.GUARDS_MARKER):
        line = replay.build_example_command(item, call.excinfo.value)
        if line:
            report.sections.append(("replay this example", line))
        lacking = _describe_lacking_fixes(item)
        if lacking:
            report.sections.append(("this release lacks the fix", lacking))
    return report


def _describe_lacking_fixes(item: pytest.Item) -> str:
    """Return the command that enables the guarded fixes which this release lacks, or ''."""
    marks = cells.read_guard_marks(item)
    if marks is None or GUARDED_STATUS in item.stash:
        return ""
    toggles = [
        toggle.id
        for toggle in marks.guarded
        if cells.find_toggle_state(toggle).state is ToggleState.BUGGY
    ]
    return f"./unfix exec --enable {','.join(toggles)} …" if toggles else ""


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run in which no guard applies, or that leaves one out: it proves nothing."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not session.config.stash.get(IS_PREPARED, False) or session.exitstatus:
        return
    passed = {report.nodeid for report in reporter.stats.get("passed", ()) if report.when == "call"}
    skipped = {report.nodeid for report in reporter.stats.get("skipped", ())}
    session.config.stash[UNREPORTED] = unreported = list(_find_unreported(session, reporter))
    if unreported or (skipped and not passed):
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def _find_unreported(session: pytest.Session, reporter: Any) -> Iterator[str]:
    """Find the guards that `--teeth` never ran, such as by a hook of a conftest.py."""
    if not session.config.getoption("teeth") or session.config.option.collectonly:
        return
    reports = (report for group in reporter.stats.values() for report in group)
    reported = {getattr(report, "nodeid", "") for report in reports}
    for item in getattr(session, "items", ()):  # xdist's controller has none
        if GUARDED_STATUS in item.stash and item.nodeid not in reported:
            yield item.nodeid


# Reporting


def pytest_report_header(config: pytest.Config) -> list[str]:
    if not config.stash.get(IS_PREPARED, False):
        return []
    return [
        f"unfix: device {device.get_device()}, profile {config.getoption('profile')}, "
        f"seed {hypothesis_adapter.get_global_seed()}"
    ]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    absent = list(_find_not_applicable(terminalreporter))
    if absent:
        terminalreporter.write_line(f"n/a here: {format_count(len(absent), 'guard')}")
        for nodeid, reason in absent:
            terminalreporter.write_line(f"  n/a {nodeid}: {reason}")
    for nodeid in config.stash.get(UNREPORTED, ()):
        terminalreporter.write_line(f"never run: {nodeid}")
    if config.getoption("teeth"):
        _show_teeth(terminalreporter)
    if config.getoption("record"):
        settings = {
            "device": device.get_device(),
            "profile": config.getoption("profile"),
            "seed": hypothesis_adapter.get_global_seed(),
            "teeth": config.getoption("teeth"),
        }
        suite_record.write_suite_record(
            config.getoption("record"), terminalreporter.stats, settings
        )


def _find_not_applicable(terminalreporter: Any) -> Iterator[tuple[str, str]]:
    for report in terminalreporter.stats.get("skipped", ()):
        reason = not_applicable.parse_not_applicable(not_applicable.read_skip_reason(report))
        if reason is not None and "suites" in report.nodeid:
            yield report.nodeid, reason


def _show_teeth(terminalreporter: Any) -> None:
    for report in terminalreporter.stats.get("passed", ()):
        properties = dict(report.user_properties)
        if "counterexample" in properties:
            reach = properties["reach"]
            terminalreporter.write_line(f"caught {report.nodeid} (its code ran {reach} times)")
            first = str(properties["counterexample"]).splitlines()[:1]
            example = suite_record.extract_falsifying_example(str(properties["notes"]))[:8]
            for line in (*first, *example):
                terminalreporter.write_line(f"    {line}")
