"""A mutation run: reach first, then a fork for each fault; each fate is kept as it falls."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from harness import machine, paths
from harness.mutate import fates, reach
from harness.mutate.looks import ENGINE, Asked, Looks, Pending
from harness.mutate.messages import Collected, Looked
from harness.mutate.order import Order
from harness.mutate.reach import Reached, Reaches
from harness.mutate.sure import Sure
from harness.prove.keeper import UNSAID
from harness.store.mutate.table import Mutations
from harness.store.mutate.values import Fate, Fated, GuardFacts, Mutation
from harness.store.prove.values import Outcome, Side

FOR_A_GUARD = 600.0  # seconds for one without a fault, traced
LEFT_OUT = f"suites/accuracy/{ENGINE}: its servers are other processes, without the fault"


class Teller:
    """Who wants to know how a run goes; this one does not."""

    def started(self, release: str) -> None: ...

    def met(self, said: Collected, known: int) -> None: ...

    def reached(self, reached: Reached, done: int, of: int) -> None: ...

    def fated(self, mutation: Mutation, fated: Fated) -> None: ...

    def problem(self, text: str) -> None: ...


@dataclass
class Case:
    """A fault that is being looked at, by some guards or by all that are left."""

    fated: Fated
    left: list[Reached]
    examples: int = 1
    saw: list[str] = field(default_factory=list)  # guards that ran its code and noticed nothing
    conflicts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.asked = len(self.left)


class Mutating:
    """One run, from its worker's start to its end."""

    def __init__(
        self,
        asked: Asked,
        run: Mutation,
        store: Mutations,
        teller: Teller,
        later: Callable[[Reaches], Asked] | None = None,
    ) -> None:
        self.asked = asked
        self.later = later  # gives the faults, once it is known what guards run
        self.run = run
        self.store = store
        self.teller = teller
        self.folder = paths.state() / "runs" / run.id
        self.looks = Looks(asked, self.folder, self._problem)
        self.reaches = Reaches("")
        self.order = Order()
        self.sure = Sure(self.looks, self._problem, self._passed)
        self._started = time.monotonic() - run.seconds

    def go(self) -> None:
        """Until every fault has its fate, or Ctrl-C: what is done by then is kept."""
        self.run.status = "stopped"
        self.store.begin(self.run)
        try:
            self.teller.started(self.asked.target.name)
            guards = self._meet()
            self._reach(guards)
            if self.later is not None:
                self.asked = self.later(self.reaches)
                self.looks.load(sorted({fault.module for fault in self.asked.faults}))
            self.looks.work(self._faults())
            self.run.status = "finished"
        finally:
            self.looks.end()
            self.run.seconds = time.monotonic() - self._started
            self.store.end(self.run)
            shutil.rmtree(self.folder, ignore_errors=True)

    def _problem(self, text: str) -> None:
        self.run.noted.append(text)
        self.teller.problem(text)

    def _meet(self) -> list[str]:
        said = self.looks.start()
        facts = machine.facts(str(self.asked.target.python))
        self.run.versions = facts.pop("versions") | said.versions
        self.run.machine = facts
        self.run.seconds_to_start = said.seconds
        for problem in said.problems:
            self._problem(problem)
        asked = self.asked
        key = reach.key(asked.target, asked.profile, asked.folders)
        self.file = reach.file_of(asked.target.name, asked.profile, asked.words)
        self.reaches = reach.load(self.file, key, asked.place)
        modules = {fault.module for fault in asked.faults}
        self.looks.load(sorted({*modules, *self.reaches.imported}))
        self.teller.met(said, sum(guard in self.reaches.guards for guard in said.guards))
        return said.guards

    # Reach

    def _reach(self, guards: list[str]) -> None:
        """Run every guard once with nothing changed, unless that is known."""
        begun = time.monotonic()
        unknown = [guard for guard in guards if guard not in self.reaches.guards]
        told = partial(self._recorded, of=len(guards))
        self.looks.work(Pending([(guard, FOR_A_GUARD)], told, trace=True) for guard in unknown)
        if unknown:
            self.looks.load(self.reaches.imported)
        self.run.seconds_to_reach = time.monotonic() - begun
        known = [one for name, one in self.reaches.guards.items() if name in set(guards)]
        for one in known:
            if one.outcome in (Outcome.NA, Outcome.SKIPPED):
                self.run.left_out.append(f"{one.guard}: {one.headline}")
            elif one.outcome is not Outcome.PASSED:
                self._problem(f"{one.guard} fails without any fault: {one.headline}")
        self.run.left_out.append(LEFT_OUT)
        self.run.guards = [
            GuardFacts(one.guard, one.outcome.value, one.seconds, one.headline) for one in known
        ]
        passing = [one for one in known if one.outcome is Outcome.PASSED]
        self.reaches.guards = {one.guard: one for one in passing}

    def _recorded(self, looked: Looked, names: list[str], of: int) -> None:
        ended_well = looked.ended and looked.last.outcome is Outcome.PASSED
        side = looked.ended[0].side if ended_well else looked.last
        traced = looked.traced
        found = self.reaches.guards[names[0]] = Reached(
            guard=names[0],
            outcome=side.outcome,
            seconds=side.seconds,
            headline=side.headline,
            suite=reach.suite_of(names[0], self.asked.place),
            lines=traced.lines if traced else {},
            imported=traced.imported if traced else [],
        )
        if found.outcome is Outcome.PASSED:
            self.sure.passes(found.guard)
        reach.save(self.file, self.reaches)
        self.teller.reached(found, len(self.reaches.guards), of)

    # Faults

    def _faults(self) -> Iterator[Pending]:
        """A first look at each that is reached; taken one by one, so that the order learns."""
        for fated in self.run.fates:  # of before the run was stopped
            if fated.by:
                self.order.killed(fated.fault, fated.by)
            elif fated.passed and not fated.longer:
                self._look_longer(fated)
        done = {fated.fault.id for fated in self.run.fates}
        # Those said to be equal take longest: every guard of theirs runs to its end.
        last = sorted(self.asked.faults, key=lambda fault: fault.id in self.asked.equals)
        for fault in last:
            if fault.id in done:
                continue
            source = self.asked.target.tree.read(fault.module)
            assert source is not None
            fated = Fated(
                fault,
                Fate.UNREACHED,
                family=self.asked.families.get(fault.target, ""),
                diff=fates.diff_of(fault, source.text),
            )
            reaching = reach.reaching(fault, source.text, self.reaches)
            if reaching and fault.id in self.asked.equals and not self.asked.doubts:
                fated.fate, fated.why = Fate.EQUAL, self.asked.equals[fault.id]
                self._keep(fated)
            elif reaching:
                yield self._look(Case(fated, self.order.of(fault, reaching)))
            else:
                fated.why = "no guard runs its lines"
                self._keep(fated)

    def _look(self, case: Case) -> Pending:
        case.left = [one for one in case.left if one.guard not in self.sure.ill]
        limits = [(one.guard, self.order.limit(one, case.examples)) for one in case.left]
        return Pending(limits, partial(self._looked, case), case.fated.fault, case.examples)

    def _looked(self, case: Case, looked: Looked, names: list[str]) -> None:
        fated = case.fated
        fated.seconds += looked.last.seconds + looked.last.overhead
        fated.ran += looked.ran
        if case.examples == 1:
            self._passed(looked, names)
        case.saw += fates.saw(looked.ended, names)
        case.conflicts += [ran.conflict for ran in looked.ended if ran.conflict]
        found = fates.killer(looked, names)
        if looked.not_live:
            fated.fate, fated.why = Fate.NOT_LIVE, looked.not_live
            self._end(case)
        elif found is None:
            self._lived(case)
        elif found[1].headline == UNSAID:
            fated.why = f"{found[0]}: {UNSAID}"
            self._problem(f"{fated.fault.id}: {fated.why}: {found[1].detail}")
            self._end(case)
        else:
            asked = names.index(found[0]) + 1
            limits = [(one.guard, self.order.limit(one, case.examples)) for one in case.left]
            case.left = case.left[asked:]
            told = partial(self._sure, case, found[0])
            self.sure.ask(fated.fault, limits[:asked], case.examples, found[1], told)

    def _sure(self, case: Case, guard: str, side: Side | None) -> None:
        """A guard noticed, or it was not the fault: then those behind it are asked."""
        if side is not None:
            fates.killed(case.fated, guard, side)
            self.order.killed(case.fated.fault, guard)
            self._end(case)
        elif case.left:
            self.looks.again.append(self._look(case))
        else:
            self._lived(case)

    def _lived(self, case: Case) -> None:
        fated = case.fated
        if fated.ran:
            fated.fate = Fate.SURVIVED
            fated.passed = case.saw if case.examples == 1 else fated.passed
            if case.examples == 1:
                self._look_longer(fated)
        else:
            fated.why = fates.why_unreached(case.conflicts, case.asked)
        self._end(case)

    def _passed(self, looked: Looked, names: list[str]) -> None:
        """Guards that noticed nothing, without their lines being recorded: so long they take."""
        for name, ran in zip(names, looked.ended, strict=False):
            if ran.side.outcome is Outcome.PASSED and not ran.conflict:
                self.order.passed(name, ran.side.seconds)

    def _look_longer(self, fated: Fated) -> None:
        """Once more, when each other fault has been looked at."""
        known = self.reaches.guards
        again = [known[name] for name in fated.passed if name in known]
        said_equal = fated.fault.id in self.asked.equals  # more examples would show no more
        if self.asked.examples > 1 and again and not said_equal:
            self.looks.later.append(self._look(Case(fated, again, self.asked.examples)))

    def _end(self, case: Case) -> None:
        case.fated.longer = case.examples > 1
        self._keep(case.fated)

    def _keep(self, fated: Fated) -> None:
        """What is known of a fault, for the first or the second time."""
        equal = self.asked.equals.get(fated.fault.id)
        if equal is not None and fated.fate in (Fate.SURVIVED, Fate.KILLED):
            fated.why = equal
            fated.fate = Fate.EQUAL if fated.fate is Fate.SURVIVED else fated.fate
        if not fated.longer:
            self.run.fates.append(fated)
        number = next(n for n, one in enumerate(self.run.fates, 1) if one is fated)
        self.store.fated(self.run.id, number, fated)
        self.teller.fated(self.run, fated)
