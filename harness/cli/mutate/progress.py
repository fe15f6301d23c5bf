"""How a mutation run goes, on stderr."""

from __future__ import annotations

from harness.cli.watching import WithBars
from harness.mutate.messages import Collected
from harness.mutate.reach import Reached
from harness.mutate.run import Teller
from harness.store.mutate.values import Fate, Fated, Mutation


class Progress(WithBars, Teller):
    """A bar where somebody looks on, lines in a log."""

    def __init__(self, mutation: Mutation) -> None:
        self.mutation = mutation
        super().__init__()
        self.task = self.bar.add_task(f"SGLang {mutation.release}: importing", total=None)

    def started(self, release: str) -> None:
        if self.bar.disable:
            self.say(f"SGLang {release}: importing; {self.mutation.planned} faults")

    def met(self, said: Collected, known: int) -> None:
        guards, unknown = len(said.guards), len(said.guards) - known
        left = f"; the lines of {unknown} are recorded first" if unknown else ""
        self.say(f"SGLang {said.release}: ready in {said.seconds:.0f} s; {guards} guards{left}")

    def reached(self, reached: Reached, done: int, of: int) -> None:
        self.bar.update(self.task, description="which lines guards run", completed=done, total=of)
        self._in_a_log(f"{done} of {of} guards recorded")

    def fated(self, mutation: Mutation, fated: Fated) -> None:
        done, planned = len(mutation.fates), mutation.planned
        self.bar.update(self.task, description="faults", completed=done, total=planned)
        if fated.fate is Fate.SURVIVED or fated.longer or fated.untrue:
            fault, longer = fated.fault, " after a longer look" if fated.longer else ""
            where = f"{fault.target}:{fault.line}"
            self.say(f"{fated.fate.value}{longer}: {fault.id} {where} {fault.words}")
        counts = ", ".join(f"{count} {name}" for name, count in mutation.counts.items())
        self._in_a_log(f"{done} of {planned} faults: {counts}")

    def problem(self, text: str) -> None:
        self.say(text)

    def _in_a_log(self, text: str) -> None:
        if self.bar.disable:
            self.log(text)
