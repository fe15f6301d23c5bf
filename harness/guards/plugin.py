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

from harness import device
from harness.errors import UnfixError
from harness.guards import absence, cells, profiles, recording, replay, sides, unfit
from harness.guards.cells import CELL, Side
from harness.matching.states import State
from harness.patching.live import engine
from harness.patching.plan import Change, Choice, Direction
from harness.registry.schema import Toggle
from harness.toggles import Toggled

PREPARED = pytest.StashKey[bool]()
ONE_SIDED = pytest.StashKey[set[str]]()
# Set by a runner that judges by itself: each guard is run on these sides, and says what it says.
SIDES = pytest.StashKey[tuple[Side, ...]]()
# And what it wants in while a guard runs that has no side of its own.
UNDER = pytest.StashKey[tuple[Change, ...]]()
PARAMETER = "unfix_cell"
_SEED = "UNFIX_SEED"
BEFORE_FORKS = "before_forks"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("unfix")
    group.addoption("--device", choices=("auto", "cpu", "cuda"), default="auto")
    group.addoption("--profile", choices=tuple(profiles.EXAMPLES), default=profiles.DEFAULT)
    group.addoption(
        "--teeth",
        action="store_true",
        help="run each guard with its fix in and with it out; the second must fail",
    )
    group.addoption("--record", type=Path, metavar="FILE", help="write what each guard said")
    group.addoption("--replay", metavar="BLOB", help="run one failing example again")


def pytest_configure(config: pytest.Config) -> None:
    """Guards of somebody else's folder come without our conftest: asked for both sides, prepare."""
    config.addinivalue_line("markers", f"{cells.MARKER}(*toggles): the toggles it guards")
    config.addinivalue_line("markers", f"{BEFORE_FORKS}(ready=…): called once, before it is forked")
    if config.getoption("teeth") and not config.stash.get(PREPARED, False):
        prepare(config)


def prepare(config: pytest.Config) -> None:
    """Settle the device, the profile and the seed, before any suite is imported."""
    # SGLang's warnings, and those of what it imports, are not a suite's.
    config.addinivalue_line("filterwarnings", "ignore")
    if not hasattr(config, "workerinput"):
        try:
            device.choose(config.getoption("device"))
        except UnfixError as error:
            raise pytest.UsageError(str(error)) from error
        given = config.getoption("hypothesis_seed", None)
        if given == "random":
            given = profiles.seed_for("nightly")
        os.environ[_SEED] = str(
            profiles.seed_for(config.getoption("profile")) if given is None else given
        )
    if device.get() == "cpu":  # SGLang compiles small functions for a GPU's sake
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    profiles.load(config.getoption("profile"))
    hypothesis.core.global_force_seed = int(os.environ[_SEED])  # type: ignore[assignment]
    config.stash[PREPARED] = True


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
        return unfit.unmade(collector, name, obj, why)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    wanted = _sides(metafunc.config)
    marks = cells.marked(metafunc.definition) if wanted else None
    if marks is None:
        return
    found = cells.cells(marks, wanted)
    metafunc.fixturenames.append(PARAMETER)
    metafunc.parametrize(PARAMETER, found, ids=str, scope="module")


def _sides(config: pytest.Config) -> tuple[Side, ...]:
    """On which sides each guard is run; none: as it is, once."""
    return config.stash.get(SIDES, cells.BOTH if config.getoption("teeth") else ())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        cell = getattr(item, "callspec", None) and item.callspec.params.get(PARAMETER)  # type: ignore[attr-defined]
        if cell is not None:
            item.stash[CELL] = cell
        if why := unfit.reason(item, both_sides=bool(_sides(config))):
            item.stash[unfit.REASON] = why
            continue
        marks = cells.marked(item)
        if marks is None:
            continue
        toggles = [cell.toggle] if cell is not None else list(marks.guards)
        if all(cells.state_of(toggle).state is State.ABSENT for toggle in toggles):
            names = ", ".join(toggle.id for toggle in toggles)
            item.add_marker(
                pytest.mark.skip(reason=f"{absence.PREFIX}{names}: not in this release")
            )
        replay.reproduce(item, config.getoption("replay"))


# Running


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Toggles that a test without sides is run under hold from its first fixture to its last."""
    under = item.config.stash.get(UNDER, ())
    if not under:
        return (yield)
    with Toggled(under):
        return (yield)


@pytest.hookimpl(specname="pytest_pyfunc_call")
def pytest_pyfunc_call_of_a_coroutine(pyfuncitem: pytest.Function) -> None:
    """Plugins that run coroutines have had their turn; pytest's own refusal is no guard's no."""
    test = pyfuncitem.obj
    if inspect.iscoroutinefunction(test) or inspect.isasyncgenfunction(test):
        raise UnfixError("it is a coroutine, and no plugin of pytest runs it")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    marks = cells.marked(pyfuncitem)
    if marks is None:
        return (yield)
    cell = pyfuncitem.stash.get(CELL, None)
    with cells.without(marks.without):
        if cell is None:
            # What it guards may ask for a GPU as it is imported, and is not to within a check.
            engine.import_for(Choice(toggle, Direction.OBSERVE) for toggle in _there(marks))
            with sides.device_errors(), replay.mended(pyfuncitem):
                return (yield)
            return True
        judged = SIDES not in pyfuncitem.config.stash
        return (yield from (sides.judged if judged else sides.run)(cell, pyfuncitem))


def _there(marks: cells.Marked) -> Iterator[Toggle]:
    states = (State.FIXED, State.BUGGY)
    return (toggle for toggle in marks.guards if cells.state_of(toggle).state in states)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, Any]:
    report = yield
    if call.when == "setup" and (why := item.stash.get(unfit.REASON, "")):
        report.outcome, report.longrepr = "failed", why
        vars(report).pop("wasxfail", None)  # one that is expected to fail is no better
        return report
    if report.failed and call.excinfo is not None and item.get_closest_marker(cells.MARKER):
        line = replay.line(item, call.excinfo.value)
        if line:
            report.sections.append(("replay this example", line))
        lacking = _lacking(item)
        if lacking:
            report.sections.append(("this release lacks the fix", lacking))
    return report


def _lacking(item: pytest.Item) -> str:
    """The guarded fixes that this release never had, with the way to put them in."""
    marks = cells.marked(item)
    if marks is None or CELL in item.stash:
        return ""
    toggles = [toggle.id for toggle in marks.guards if cells.state_of(toggle).state is State.BUGGY]
    return f"./unfix exec --enable {','.join(toggles)} …" if toggles else ""


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Guards that all do not apply prove nothing: such a run is not green."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not session.config.stash.get(PREPARED, False) or session.exitstatus:
        return
    passed = {report.nodeid for report in reporter.stats.get("passed", ()) if report.when == "call"}
    skipped = {report.nodeid for report in reporter.stats.get("skipped", ())}
    if skipped and not passed:
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
    one_sided = {node for node in skipped if _other_side(node) in passed}
    if one_sided:
        session.config.stash[ONE_SIDED] = one_sided
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _other_side(nodeid: str) -> str:
    """The same cell's node on the other side of its toggle."""
    for side, other in ((Side.FIXED, Side.BUGGY), (Side.BUGGY, Side.FIXED)):
        if f" {side.value}]" in nodeid or f" {side.value}-" in nodeid:
            swapped = nodeid.replace(f" {side.value}]", f" {other.value}]")
            return swapped.replace(f" {side.value}-", f" {other.value}-")
    return ""


# Telling


def pytest_report_header(config: pytest.Config) -> list[str]:
    if not config.stash.get(PREPARED, False):
        return []
    return [
        f"unfix: device {device.get()}, profile {config.getoption('profile')}, "
        f"seed {hypothesis.core.global_force_seed}"
    ]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    absent = list(_absences(terminalreporter))
    if absent:
        terminalreporter.write_line(f"n/a: {len(absent)} guards do not apply here")
        for nodeid, reason in absent:
            terminalreporter.write_line(f"  n/a {nodeid}: {reason}")
    for nodeid in sorted(config.stash.get(ONE_SIDED, ())):
        terminalreporter.write_line(f"red: {nodeid} is n/a, and its other side is not")
    if config.getoption("teeth"):
        _show_teeth(terminalreporter)
    if config.getoption("record"):
        settings = {
            "device": device.get(),
            "profile": config.getoption("profile"),
            "seed": hypothesis.core.global_force_seed,
            "teeth": config.getoption("teeth"),
        }
        recording.write(config.getoption("record"), terminalreporter.stats, settings)


def _absences(terminalreporter: Any) -> Iterator[tuple[str, str]]:
    for report in terminalreporter.stats.get("skipped", ()):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        if reason.startswith(absence.PREFIX) and "suites" in report.nodeid:
            yield report.nodeid, reason.removeprefix(absence.PREFIX)


def _show_teeth(terminalreporter: Any) -> None:
    for report in terminalreporter.stats.get("passed", ()):
        shown = dict(report.user_properties)
        if "counterexample" in shown:
            terminalreporter.write_line(
                f"caught {report.nodeid} (its code ran {shown['reach']} times)"
            )
            first = str(shown["counterexample"]).splitlines()[:1]
            for line in (*first, *recording.falsifying(str(shown["notes"]))[:8]):
                terminalreporter.write_line(f"    {line}")
