"""Guards as pytest tests: devices, profiles, seeds, both sides of a toggle, and what is not here.

Loaded by the root conftest.py. A file under suites/ makes `prepare` run before it is imported.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis.core
import pytest

from harness.core import device
from harness.core.errors import UnfixError
from harness.fixes.matching.toggle_status import ToggleState
from harness.fixes.registry.schema import Toggle
from harness.guards import (
    cells,
    not_applicable,
    profiles,
    replay,
    sides,
    suite_record,
    unrunnable_guards,
)
from harness.guards.cells import CELL_KEY, Side
from harness.patching.live_engine import engine
from harness.patching.patch_plan import Direction, SourceChange, ToggleChoice
from harness.toggles import ToggleContext

IS_PREPARED = pytest.StashKey[bool]()
ONE_SIDED_NODES = pytest.StashKey[set[str]]()
# Set by a runner that judges by itself: each guard is run on these sides, and says what it says.
SIDES_TO_RUN = pytest.StashKey[tuple[Side, ...]]()
# And what it wants in while a guard runs that has no side of its own.
APPLIED_CHANGES = pytest.StashKey[tuple[SourceChange, ...]]()
CELL_PARAMETER = "unfix_cell"
_SEED_VARIABLE = "UNFIX_SEED"
BEFORE_FORKS_MARKER = "before_forks"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("unfix")
    group.addoption("--device", choices=("auto", "cpu", "cuda"), default="auto")
    group.addoption(
        "--profile", choices=tuple(profiles.EXAMPLES_BY_PROFILE), default=profiles.DEFAULT_PROFILE
    )
    group.addoption(
        "--teeth",
        action="store_true",
        help="run each guard with its fix in and with it out; the second must fail",
    )
    group.addoption("--record", type=Path, metavar="FILE", help="write what each guard said")
    group.addoption("--replay", metavar="BLOB", help="run one failing example again")


def pytest_configure(config: pytest.Config) -> None:
    """Guards of somebody else's folder come without our conftest: asked for both sides, prepare."""
    config.addinivalue_line("markers", f"{cells.GUARDS_MARKER}(*toggles): the toggles it guards")
    config.addinivalue_line(
        "markers", f"{BEFORE_FORKS_MARKER}(ready=…): called once, before it is forked"
    )
    if config.getoption("teeth") and not config.stash.get(IS_PREPARED, False):
        prepare_session(config)


def prepare_session(config: pytest.Config) -> None:
    """Settle the device, the profile and the seed, before any suite is imported."""
    # SGLang's warnings, and those of what it imports, are not a suite's.
    config.addinivalue_line("filterwarnings", "ignore")
    if not hasattr(config, "workerinput"):
        try:
            device.choose_device(config.getoption("device"))
        except UnfixError as error:
            raise pytest.UsageError(str(error)) from error
        given = config.getoption("hypothesis_seed", None)
        if given == "random":
            given = profiles.choose_seed("nightly")
        os.environ[_SEED_VARIABLE] = str(
            profiles.choose_seed(config.getoption("profile")) if given is None else given
        )
    if device.get_device() == "cpu":  # SGLang compiles small functions for a GPU's sake
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    profiles.load_profile(config.getoption("profile"))
    hypothesis.core.global_force_seed = int(os.environ[_SEED_VARIABLE])  # type: ignore[assignment]
    config.stash[IS_PREPARED] = True


# Collecting


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> Generator[None, Any, Any]:
    """A test that pytest cannot make takes its file with it: it becomes one that fails alone."""
    try:
        return (yield)
    except (Exception, pytest.fail.Exception) as error:
        plain = isinstance(error, UnfixError | pytest.fail.Exception)
        why = str(error) if plain else f"{type(error).__name__}: {error}"
        return unrunnable_guards.make_unbuildable_test(collector, name, obj, why)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    wanted = _choose_sides(metafunc.config)
    marks = cells.read_guard_marks(metafunc.definition) if wanted else None
    if marks is None:
        return
    found = cells.make_cells(marks, wanted)
    metafunc.fixturenames.append(CELL_PARAMETER)
    metafunc.parametrize(CELL_PARAMETER, found, ids=str, scope="module")


def _choose_sides(config: pytest.Config) -> tuple[Side, ...]:
    """On which sides each guard is run; none: as it is, once."""
    return config.stash.get(SIDES_TO_RUN, cells.BOTH_SIDES if config.getoption("teeth") else ())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        cell = getattr(item, "callspec", None) and item.callspec.params.get(CELL_PARAMETER)  # type: ignore[attr-defined]
        if cell is not None:
            item.stash[CELL_KEY] = cell
        if why := unrunnable_guards.find_unrunnable_reason(
            item, both_sides=bool(_choose_sides(config))
        ):
            item.stash[unrunnable_guards.UNRUNNABLE_REASON] = why
            continue
        marks = cells.read_guard_marks(item)
        if marks is None:
            continue
        toggles = [cell.toggle] if cell is not None else list(marks.guarded)
        if all(cells.find_toggle_state(toggle).state is ToggleState.ABSENT for toggle in toggles):
            names = ", ".join(toggle.id for toggle in toggles)
            item.add_marker(
                pytest.mark.skip(
                    reason=f"{not_applicable.NOT_APPLICABLE_PREFIX}{names}: not in this release"
                )
            )
        replay.set_replayed_example(item, config.getoption("replay"))


# Running


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Toggles that a test without sides is run under hold from its first fixture to its last."""
    under = item.config.stash.get(APPLIED_CHANGES, ())
    if not under:
        return (yield)
    with ToggleContext(under):
        return (yield)


@pytest.hookimpl(specname="pytest_pyfunc_call")
def pytest_pyfunc_call_of_a_coroutine(pyfuncitem: pytest.Function) -> None:
    """Plugins that run coroutines have had their turn; pytest's own refusal is no guard's no."""
    test = pyfuncitem.obj
    if inspect.iscoroutinefunction(test) or inspect.isasyncgenfunction(test):
        raise UnfixError("it is a coroutine, and no plugin of pytest runs it")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    marks = cells.read_guard_marks(pyfuncitem)
    if marks is None:
        return (yield)
    cell = pyfuncitem.stash.get(CELL_KEY, None)
    with cells.revert_where_present(marks.always_reverted):
        if cell is None:
            # What it guards may ask for a GPU as it is imported, and is not to within a check.
            engine.import_targets(
                ToggleChoice(toggle, Direction.OBSERVE)
                for toggle in _select_toggles_in_release(marks)
            )
            with sides.raise_lost_device_as_failure(), replay.allow_passing_replay(pyfuncitem):
                return (yield)
            return True
        judged = SIDES_TO_RUN not in pyfuncitem.config.stash
        return (yield from (sides.run_judged_side if judged else sides.run_side)(cell, pyfuncitem))


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
        vars(report).pop("wasxfail", None)  # one that is expected to fail is no better
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
    """The guarded fixes that this release never had, with the way to put them in."""
    marks = cells.read_guard_marks(item)
    if marks is None or CELL_KEY in item.stash:
        return ""
    toggles = [
        toggle.id
        for toggle in marks.guarded
        if cells.find_toggle_state(toggle).state is ToggleState.BUGGY
    ]
    return f"./unfix exec --enable {','.join(toggles)} …" if toggles else ""


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Guards that all do not apply prove nothing: such a run is not green."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not session.config.stash.get(IS_PREPARED, False) or session.exitstatus:
        return
    passed = {report.nodeid for report in reporter.stats.get("passed", ()) if report.when == "call"}
    skipped = {report.nodeid for report in reporter.stats.get("skipped", ())}
    if skipped and not passed:
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
    one_sided = {node for node in skipped if _find_other_side_node(node) in passed}
    if one_sided:
        session.config.stash[ONE_SIDED_NODES] = one_sided
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _find_other_side_node(nodeid: str) -> str:
    """The same cell's node on the other side of its toggle."""
    for side, other in ((Side.FIXED, Side.BUGGY), (Side.BUGGY, Side.FIXED)):
        if f" {side.value}]" in nodeid or f" {side.value}-" in nodeid:
            swapped = nodeid.replace(f" {side.value}]", f" {other.value}]")
            return swapped.replace(f" {side.value}-", f" {other.value}-")
    return ""


# Telling


def pytest_report_header(config: pytest.Config) -> list[str]:
    if not config.stash.get(IS_PREPARED, False):
        return []
    return [
        f"unfix: device {device.get_device()}, profile {config.getoption('profile')}, "
        f"seed {hypothesis.core.global_force_seed}"
    ]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    absent = list(_find_not_applicable(terminalreporter))
    if absent:
        terminalreporter.write_line(f"n/a: {len(absent)} guards do not apply here")
        for nodeid, reason in absent:
            terminalreporter.write_line(f"  n/a {nodeid}: {reason}")
    for nodeid in sorted(config.stash.get(ONE_SIDED_NODES, ())):
        terminalreporter.write_line(f"red: {nodeid} is n/a, and its other side is not")
    if config.getoption("teeth"):
        _show_teeth(terminalreporter)
    if config.getoption("record"):
        settings = {
            "device": device.get_device(),
            "profile": config.getoption("profile"),
            "seed": hypothesis.core.global_force_seed,
            "teeth": config.getoption("teeth"),
        }
        suite_record.write_suite_record(
            config.getoption("record"), terminalreporter.stats, settings
        )


def _find_not_applicable(terminalreporter: Any) -> Iterator[tuple[str, str]]:
    for report in terminalreporter.stats.get("skipped", ()):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        if reason.startswith(not_applicable.NOT_APPLICABLE_PREFIX) and "suites" in report.nodeid:
            yield report.nodeid, reason.removeprefix(not_applicable.NOT_APPLICABLE_PREFIX)


def _show_teeth(terminalreporter: Any) -> None:
    for report in terminalreporter.stats.get("passed", ()):
        shown = dict(report.user_properties)
        if "counterexample" in shown:
            terminalreporter.write_line(
                f"caught {report.nodeid} (its code ran {shown['reach']} times)"
            )
            first = str(shown["counterexample"]).splitlines()[:1]
            for line in (*first, *suite_record.extract_falsifying_example(str(shown["notes"]))[:8]):
                terminalreporter.write_line(f"    {line}")
