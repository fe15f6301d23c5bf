"""A worker of a mutation run: it imports SGLang once and forks each look at a fault.

Every test of the suites is a guard here. No fault is ever put into this process.
"""

from __future__ import annotations

import contextlib
import importlib
import time
import warnings
from collections import Counter

import pytest

from harness import forking
from harness.errors import UnfixError
from harness.fuzz.worker import versions
from harness.mutate import looking
from harness.mutate.looking import Guard, Looking
from harness.mutate.messages import Collected, Load, Look, Orders, Setting
from harness.patching import live, variants
from harness.prove.messages import Order
from harness.prove.session import Session, main
from harness.store.prove.values import Side

SLACK = 60.0  # seconds beyond what its guards may take, for a fork that hangs between them


class Worker(Session[Setting]):
    """One that looks at faults."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = self.fit(session.items)
        self.guards = list(map(Guard, self.items))
        self.looks: dict[int, Look] = {}  # under way, by serial
        names = [item.nodeid for item in self.items]
        for name, count in Counter(names).items():
            if count > 1:
                self.problems.append(f"{count} tests are called {name}")
        if self.refuse_without_forks():
            return True
        self.settle(session)
        self.say(
            Collected(
                guards=names,
                seconds=time.time() - self.started,
                release=str(live.engine.sources.version),
                versions=versions(),
                problems=self.problems,
            )
        )
        self.serve_forks()
        return True

    def take_orders(self) -> None:
        for wanted in self.heard(Orders):
            if isinstance(wanted, Load):
                _load(wanted.modules)
            else:
                self._look(wanted)

    def _look(self, look: Look) -> None:
        for asked in look.guards:
            with contextlib.suppress(UnfixError):  # the guard itself will meet it, and say it
                self.guards[asked.number].build()
        if look.fault is not None and (source := live.engine.sources.read(look.fault.module)):
            variants.read_before(source.text, source.path)
        if not live.engine.idle:
            raise RuntimeError("a guard's toggles could not be taken out again")
        seconds = sum(asked.seconds for asked in look.guards) + SLACK
        looks = Looking(look, self.guards, self.folder, self.listener)
        self.looks[look.serial] = look
        about = {change.id: change.verb for change in looks.changes}
        order = Order(0, look.serial, seconds, look.memory)
        order.forks *= look.examples * len(look.guards)
        self.fork(order, looks.run, about)

    def came_back(self, order: Order, side: Side) -> None:
        self.say(looking.read(self.folder, self.looks.pop(order.serial), side))


def _load(modules: list[str]) -> None:
    """Import what forks would, one by one; what does not import here is left to who needs it."""
    with warnings.catch_warnings(action="ignore"):
        for name in modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    forking.settle()


if __name__ == "__main__":
    main(Worker, Setting)
