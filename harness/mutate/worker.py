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
from harness.mutate.looking import Guard, Looking, read
from harness.mutate.messages import Collected, Load, Look, Looked, Orders, Setting
from harness.patching import live, variants
from harness.prove.messages import Order
from harness.prove.session import Session, main
from harness.store.prove.values import Side

SLACK = 60.0  # seconds beyond what its guards may take, for a fork that hangs between them


class Worker(Session[Setting]):
    """One that looks at faults."""

    wants = Look

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = self.fit(session.items)
        self.guards = list(map(Guard, self.items))
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
                self.renew()
            else:
                self.give(wanted)

    def run(self, wanted: Look) -> Side:
        for asked in wanted.guards:
            with contextlib.suppress(UnfixError):  # the guard itself will meet it, and say it
                self.guards[asked.number].build()
        if wanted.fault is not None and (source := live.engine.sources.read(wanted.fault.module)):
            variants.read_before(source.text, source.path)
        if not live.engine.idle:
            raise RuntimeError("a guard's toggles could not be taken out again")
        seconds = sum(asked.seconds for asked in wanted.guards) + SLACK
        looking = Looking(wanted, self.guards, self.folder, self.listener)
        order = Order(0, wanted.serial, seconds, wanted.memory)
        order.forks *= wanted.examples * len(wanted.guards)
        about = {change.id: change.verb for change in looking.changes}
        return self.alone(order, looking.run, about)

    def answer(self, wanted: Look, side: Side) -> Looked:
        return read(self.folder, wanted, side)


def _load(modules: list[str]) -> None:
    """Import what forks would, one by one; what does not import here is left to who needs it."""
    with warnings.catch_warnings(action="ignore"):
        for name in modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    forking.settle()


if __name__ == "__main__":
    main(Worker, Setting)
