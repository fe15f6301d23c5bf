"""No kill is believed at once: the guard fails with the fault alone, and passes without it.

A guard may be ill by itself, with more examples than anybody ran before, or after another guard
that left something behind; a machine may end a process that did nothing wrong.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.mutate import fates
from harness.mutate.looks import Looks, Pending
from harness.mutate.messages import Looked
from harness.store.mutate.faults import Fault
from harness.store.prove.values import Outcome, Side

# What a machine does to a process as well as a fault.
MACHINE = {Outcome.HANG, Outcome.KILLED, Outcome.OUT_OF_MEMORY, Outcome.LOST}
SLOW = 15.0, 2.0  # seconds at least, and times as long: what took too long may only have been slow
Limits = list[tuple[str, float]]  # guards, and how long each may take
Told = Callable[[Side | None], None]


class Sure:
    """Asks again, and remembers what guards come to without a fault."""

    def __init__(
        self,
        looks: Looks,
        problem: Callable[[str], None],
        passed: Callable[[Looked, list[str]], None],
    ) -> None:
        self.ill: set[str] = set()  # guards that fail without a fault
        self._looks = looks
        self._problem = problem
        self._passed = passed  # told of guards that ran without a fault
        self._known: dict[tuple[tuple[str, ...], int], Side | None] = {}
        self._waiting: dict[tuple[tuple[str, ...], int], list[Told]] = {}

    def passes(self, guard: str) -> None:
        """In this run, by itself, without a fault."""
        self._known[(guard,), 1] = None

    def ask(self, fault: Fault, guards: Limits, examples: int, side: Side, told: Told) -> None:
        """`side` is what the last of the guards said; `told` gets it again, or what it is, or none.

        The guards before the last one passed in the same process.
        """
        alone = guards[-1:]
        if len(guards) == 1 and side.outcome not in MACHINE:
            self._without(alone, examples, lambda failing: told(None if failing else side))
            return

        def again(looked: Looked, names: list[str]) -> None:
            found = fates.killer(looked, names)
            if found is not None:
                self._without(alone, examples, lambda failing: told(None if failing else found[1]))
            elif len(guards) > 1 and side.outcome not in MACHINE:
                self._without(guards, examples, lambda failing: told(None if failing else side))
            else:
                told(None)

        if side.outcome is Outcome.HANG:
            least, times = SLOW
            alone = [(name, max(least, times * limit)) for name, limit in alone]
        self._looks.again.append(Pending(alone, again, fault, examples))

    def _without(self, guards: Limits, examples: int, told: Told) -> None:
        """What comes of guards in one process without a fault: none if they pass. Asked once.

        Not at all of a guard whose lines were recorded in this run: it passed there.
        """
        key = tuple(name for name, _ in guards), examples
        if key in self._known:
            told(self._known[key])
            return
        self._waiting.setdefault(key, []).append(told)
        if len(self._waiting[key]) > 1:
            return

        def answered(looked: Looked, names: list[str]) -> None:
            found = fates.killer(looked, names)
            self._known[key] = found[1] if found is not None else None
            if found is not None:
                self._say(found[0], names, examples, found[1])
            elif examples == 1:
                self._passed(looked, names)
            for one in self._waiting.pop(key):
                one(self._known[key])

        self._looks.again.append(Pending(guards, answered, examples=examples))

    def _say(self, guard: str, names: list[str], examples: int, side: Side) -> None:
        self.ill.add(guard)
        how = f" with {examples} times the examples" if examples > 1 else ""
        if len(names) > 1:
            how += f" after {', '.join(name for name in names if name != guard)}"
        self._problem(f"{guard} fails without any fault{how}: {side.headline or side.outcome}")
