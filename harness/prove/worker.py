"""A worker: one process of a release's own Python, which imports SGLang once and runs guards.

Each test runs in a fork of this process. On a GPU they run here, one after another, since a fork
would have to start CUDA anew, which takes longer than most of them; one that loses the device, or
the process, costs this worker and no other test.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

from harness import device
from harness.errors import UnfixError
from harness.guards import cells, plugin, replay, sides, unfit
from harness.guards.cells import CELL, Side
from harness.matching.states import State
from harness.patching import attestation, live
from harness.prove import again, body, leavings
from harness.prove.messages import UNDER, Collected, Ended, Fit, Order, Setting, Task, Unfit
from harness.prove.session import Session, choices, main
from harness.store.prove import values
from harness.store.prove.values import Outcome
from harness.toggles import Toggled


class Worker(Session[Setting]):
    """One that runs guards, each side of a cell for itself."""

    wants = Order
    forks_alone = False

    def pytest_configure(self, config: pytest.Config) -> None:
        config.stash[plugin.SIDES] = tuple(Side(side) for side in self.setting.sides)
        super().pytest_configure(config)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None, Any, Any]:
        """A guard is chosen on all its sides: `-k fixed` means something else."""
        everything = list(items)
        result = yield
        chosen = {name for name in map(_cell_of, items) if name is not None}
        kept = set(items)
        items[:] = [item for item in everything if item in kept or _cell_of(item) in chosen]
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        found = session.items if self.setting.sides else self.fit(session.items)
        self.items = [item for item in found if self._wanted(item)]
        tasks = [
            task for number, item in enumerate(self.items) for task in self._tasks(number, item)
        ]
        for key, count in Counter(task.key for task in tasks).items():
            if count > 1:
                self.problems.append(f"{count} tests are called {key[1]}, guarding {key[0]}")
        forks = device.get() == "cpu"
        of_cells = (item.stash[CELL] for item in self.items if CELL in item.stash)
        there = (cell for cell in of_cells if cell.finding.state in (State.FIXED, State.BUGGY))
        live.engine.import_for(map(cells.change, there))  # once, and not in each keeper
        self.settle(session, forks)
        seconds = time.time() - self.started
        release = str(live.engine.sources.version)
        self.say(Collected(tasks, seconds, device.get(), forks, release, self.problems))
        (self.serve_forks if forks else self._serve_here)()
        return True

    def _wanted(self, item: pytest.Item) -> bool:
        if unfit.REASON in item.stash:
            return self._wants_unfit(item)
        marks = cells.marked(item)
        if marks is None:
            return False
        asked = self.setting.toggles
        if not self.setting.sides:
            return True
        return not asked or item.stash[CELL].toggle.id in asked

    def _wants_unfit(self, item: pytest.Item) -> bool:
        """One that says what it guards is a cell; of others nobody knows what is lost with them."""
        if not list(item.iter_markers(cells.MARKER)):
            self.fit([item])
            return False
        return not self.setting.toggles or bool({*self.setting.toggles} & {*unfit.names(item)})

    def _tasks(self, number: int, item: pytest.Item) -> list[Task]:
        why = item.stash.get(unfit.REASON, "")
        if not why:
            return [self._task(number, item)]
        cell = item.stash.get(CELL, None)
        if cell is not None:
            name, side = replay.guard(item, cell), cell.side.value
            return [Task(number, name, cell.toggle.id, side, cell.finding.state.value, broken=why)]
        toggles = unfit.names(item) or ["no toggle"]
        return [Task(number, item.nodeid, toggle, "", "", broken=why) for toggle in toggles]

    def _task(self, number: int, item: pytest.Item) -> Task:
        if not self.setting.sides:
            return Task(number, item.nodeid, "", UNDER, "")
        cell = item.stash[CELL]
        state = cell.finding.state
        name, toggle, side = replay.guard(item, cell), cell.toggle.id, cell.side.value
        task = Task(number, name, toggle, side, state.value)
        if state is State.STALE:
            task.problem = cell.finding.problem
        elif state is State.ABSENT:
            task.na = "not in this release"
        elif device.get() not in {each.value for each in cell.toggle.devices}:
            task.na = f"no bug of {device.get()}"
        return task

    # In forks

    def take_orders(self) -> None:
        for order in self._orders():
            self.give(order)

    def run(self, wanted: Order) -> values.Side:
        item = self.items[wanted.number]
        toggles = self._under(item, wanted)
        _build(item)
        _look_at_strategies(item)
        return self.alone(wanted, functools.partial(self._run, item, wanted), toggles)

    def _run(self, item: pytest.Item, order: Order) -> values.Side:
        if order.chance is not None:
            again.draw_anew(order.chance)
        if order.way is None:
            return self._look(item)
        first = self._look(item, again.look(order.way, order.blob))
        if not order.whole or first.outcome is Outcome.CUDA_ERROR:
            return first
        side = self._look(item)
        side.again = [values.Again(first.outcome, first.headline, first.seconds)]
        return side

    def _look(self, item: pytest.Item, look: sides.Look | None = None) -> values.Side:
        stash, full = item.config.stash, _times_full()
        if look is not None:
            stash[sides.LOOK] = look
        try:
            # What fails again was told when it first failed; a device may be full in any words.
            at_length = look is None or device.get() != "cpu"
            side = body.run(item, self.listener, at_length)
        finally:
            if look is not None:
                del stash[sides.LOOK]
        told = "CUDA error: out of memory" in side.headline + side.detail
        if side.outcome not in (Outcome.PASSED, Outcome.NA) and (told or _times_full() > full):
            side.outcome = Outcome.OUT_OF_MEMORY
            side.headline = f"the memory of the device was full: {side.headline}"
        elif (error := _error_of_the_device()) and side.outcome is not Outcome.FAILED:
            side.outcome = Outcome.CUDA_ERROR
            side.headline = side.headline or f"the device is lost after the test: {error}"
        return side

    def answer(self, wanted: Order, side: values.Side, lost: bool = False) -> Ended:
        item = self.items[wanted.number]
        cell = item.stash.get(CELL, None)
        side.side = cell.side.value if cell is not None else UNDER
        side.way = again.way(item, side)
        return Ended(wanted.serial, side, lost)

    # Here

    def _serve_here(self) -> None:
        faulthandler.enable()
        while not self.line.over:
            for order in self._orders():
                item, here = self.items[order.number], os.getpid()
                toggles = self._under(item, order)
                begun, before = time.monotonic(), self._reach(toggles)
                with leavings.none_of_examples(item):
                    side = self._run(item, order)
                if os.getpid() != here:
                    os._exit(70)  # a process that the test forked and that did not end there
                after = self._reach(toggles)
                side.ran = {toggle: after[toggle] - before[toggle] for toggle in toggles}
                side.reach = sum(side.ran.values())
                side.overhead = max(0.0, time.monotonic() - begun - side.looked)
                leavings.none_of_test(self.listener)
                lost = side.outcome is Outcome.CUDA_ERROR or bool(_error_of_the_device())
                if not lost:
                    _leave_the_memory()
                self.say(self.answer(order, side, lost))
                if lost:
                    return

    def _reach(self, toggles: dict[str, str]) -> dict[str, int]:
        attested = attestation.read(live.engine.recorder.file.parent)
        ours = [found for found in attested if found.pid == os.getpid()]
        return {
            toggle: sum(found.reach(toggle, direction) for found in ours)
            for toggle, direction in toggles.items()
        }

    def _orders(self) -> list[Order]:
        """The tests that are wanted; questions are answered at once."""
        found = []
        for order in self.heard(Order | Fit):
            if isinstance(order, Fit):
                self.say(Unfit(self._unfit(order)))
            else:
                found.append(order)
        return found

    def _unfit(self, asked: Fit) -> dict[str, str]:
        reasons = {}
        for choice in choices(asked.under):
            try:
                # A module that warns as it is imported here is imported all the same.
                with warnings.catch_warnings(action="ignore"), Toggled((choice,)):
                    pass
            except UnfixError as error:
                reasons[choice.toggle.id] = str(error)
        return reasons

    def _under(self, item: pytest.Item, order: Order) -> dict[str, str]:
        """The toggles that a test is run under; those of an order are put in by the plugin."""
        cell = item.stash.get(CELL, None)
        if cell is not None:
            return {cell.toggle.id: cells.direction(cell).value}
        item.config.stash[plugin.UNDER] = choices(order.under)
        return dict(order.under)


def _cell_of(item: pytest.Item) -> tuple[str, str] | None:
    """What the sides of one cell have in common."""
    callspec: Any = getattr(item, "callspec", None)
    cell = callspec.params.get(plugin.PARAMETER) if callspec is not None else None
    if cell is None:
        return None
    return replay.guard(item, cell), cell.toggle.id


def _build(item: pytest.Item) -> None:
    """Have the patched code made here once, for all the forks that run it."""
    marks = cells.marked(item)
    assert marks is not None
    cell = item.stash.get(CELL, None)
    under = item.config.stash.get(plugin.UNDER, ())
    with (
        contextlib.suppress(Exception),  # the test itself will meet it, and say it
        warnings.catch_warnings(action="ignore"),
        cells.without(marks.without),
        cells.applied(cell) if cell is not None else Toggled(under),
    ):
        pass
    if not live.engine.idle:
        what = cell or ", ".join(map(str, under))
        raise RuntimeError(f"{what} could not be taken out again: what comes after it says nothing")


def _look_at_strategies(item: pytest.Item) -> None:
    """What Hypothesis works out of a strategy once is worked out here, for all forks."""
    handle = getattr(getattr(item, "obj", None), "hypothesis", None)
    for strategy in getattr(handle, "_given_kwargs", {}).values():
        with contextlib.suppress(Exception):  # the test itself will meet it, and say it
            strategy.validate()


def _cuda() -> Any:
    """torch.cuda, where this process uses it."""
    torch: Any = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def _times_full() -> int:
    """How often this process found the device's memory full: others had it, whatever that did."""
    return int(cuda.memory_stats().get("num_ooms", 0)) if (cuda := _cuda()) is not None else 0


def _error_of_the_device() -> str:
    """What a launch of the test left pending; anything but CUDA's own errors goes on up."""
    if (cuda := _cuda()) is None:
        return ""
    try:
        cuda.synchronize()
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return ""


def _leave_the_memory() -> None:
    """What a test had of the device is the next one's, in whichever process."""
    if (cuda := _cuda()) is not None:
        cuda.empty_cache()
    if (room := sys.modules.get("harness.checking.room")) is not None:
        room.leave()


if __name__ == "__main__":
    # A class that pytest leaves out of the collection may hold guards.
    main(Worker, Setting, ["-W", "error::pytest.PytestCollectionWarning"])
