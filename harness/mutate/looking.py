"""One look at a fault, inside its own process: its guards one after another, until one fails.

Each guard that ends is written down before the next begins, so that one which takes the process
with it is known: it is the first that did not end.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.errors import UnfixError
from harness.guards import cells, plugin, profiles
from harness.matching.states import State
from harness.mutate.messages import PASSES, Asked, Look, Looked, Ran, Traced
from harness.mutate.tracing import Tracer
from harness.patching import live
from harness.patching.plan import Choice, Direction, Placed
from harness.prove import body, keeper
from harness.registry.schema import Target
from harness.store.mutate.faults import Fault
from harness.store.prove.values import Outcome, Side
from harness.toggles import Toggled


def placed(fault: Fault) -> Placed:
    """A fault as what can be put into a living process."""
    target = Target(fault.module, fault.qualname)
    return Placed(fault.id, fault.words, target, fault.start, fault.end, fault.before, fault.after)


class Guard:
    """A test, and what is put into the release for it."""

    def __init__(self, item: pytest.Item) -> None:
        self.item = item
        marks = cells.marked(item)
        self.without = marks.without if marks else ()
        # The fixes that it is about and that this release never had: without them it fails.
        self.fixes = tuple(
            Choice(toggle, Direction.ENABLE)
            for toggle in (marks.guards if marks else ())
            if cells.state_of(toggle).state is State.BUGGY
        )

    def build(self) -> None:
        """Have the changed code made once, for all that come after."""
        with (
            # A module that warns as it is imported here is imported all the same.
            warnings.catch_warnings(action="ignore"),
            Toggled(self.fixes),
            cells.without(self.without),
        ):
            pass


class Looking:
    """What a fork does, and what it writes down."""

    def __init__(
        self, look: Look, guards: list[Guard], folder: Path, listener: body.Listener
    ) -> None:
        self.look = look
        self.guards = guards
        self.folder = folder
        self.listener = listener
        self.changes = (placed(look.fault),) if look.fault is not None else ()

    def run(self) -> Side:
        try:
            with warnings.catch_warnings(action="ignore"):
                live.engine.enter(self.changes)
        except UnfixError as error:
            _file(self.folder, self.look.serial, "not_live").write_text(str(error))
            return Side("", Outcome.PASSED)
        here = os.getpid()
        with open(_file(self.folder, self.look.serial, "ended"), "ab", buffering=0) as ended:
            for asked in self.look.guards:
                ran = self._guard(asked)
                if os.getpid() != here:
                    os._exit(keeper.OURS)  # a process that the guard forked and that goes on
                ended.write(msgspec.json.encode(ran) + b"\n")
                if ran.side.outcome not in PASSES:
                    break
        return Side("", Outcome.PASSED)

    def _guard(self, asked: Asked) -> Ran:
        guard = self.guards[asked.number]
        if conflict := self._conflict(guard):
            return Ran(asked.number, Side("", Outcome.PASSED), conflict=conflict)
        item: Any = guard.item
        item.config.stash[plugin.UNDER] = guard.fixes
        before = live.engine.reach(self.changes)
        with (
            profiles.longer(item.obj, self.look.examples, self.look.keep_shrinking),
            _alarm(asked.seconds),
            self._watched() as traced,
        ):
            side = body.run(item, self.listener)
        if traced is not None:
            _file(self.folder, self.look.serial, "traced").write_bytes(msgspec.json.encode(traced))
        return Ran(asked.number, side, live.engine.reach(self.changes) - before)

    def _conflict(self, guard: Guard) -> str:
        """Why a guard's own toggles and the fault cannot be in at once: it cannot see it then."""
        try:
            if self.changes:
                guard.build()
        except UnfixError as error:
            return str(error)
        return ""

    @contextlib.contextmanager
    def _watched(self) -> Iterator[Traced | None]:
        """Which lines run, where nothing is changed; a fault's own look goes at full speed."""
        if not self.look.trace:
            yield None
            return
        before = set(sys.modules)
        tracer = Tracer(package_root())
        traced = Traced({}, [])
        with tracer.tracing():
            yield traced
        traced.lines = {name: sorted(lines) for name, lines in tracer.lines.items() if lines}
        new = set(sys.modules) - before
        traced.imported = sorted(name for name in new if name.partition(".")[0] == "sglang")


def package_root() -> Path:
    """The folder that the release's package lies in."""
    source = live.engine.sources.read("sglang")
    assert source is not None
    return Path(source.path).parents[1]


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """End this process if the block takes too long, and say where it was, whatever it is doing."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    faulthandler.register(signal.SIGALRM, chain=True)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def read(folder: Path, look: Look, last: Side) -> Looked:
    """What a fork wrote down, for its run; its files are gone afterwards."""
    looked = Looked(look.serial, [], last, last.reach)
    for line in _left(folder, look.serial, "ended").splitlines():
        with contextlib.suppress(msgspec.DecodeError):  # it ended in the middle of a line
            looked.ended.append(msgspec.json.decode(line, type=Ran))
    looked.not_live = _left(folder, look.serial, "not_live").decode()
    if traced := _left(folder, look.serial, "traced"):
        looked.traced = msgspec.json.decode(traced, type=Traced)
    return looked


def _file(folder: Path, serial: int, kind: str) -> Path:
    return folder / f"{serial}.{kind}"


def _left(folder: Path, serial: int, kind: str) -> bytes:
    try:
        return _file(folder, serial, kind).read_bytes()
    except FileNotFoundError:
        return b""
