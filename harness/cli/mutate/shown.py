"""How a mutation run goes, on stderr, and what is shown and written of it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from harness.cli import options, pages
from harness.cli.watching import Watching, bars, on_stderr
from harness.matching.states import Sources
from harness.mutate import fates
from harness.mutate.faults import Fault, Made
from harness.mutate.messages import Collected
from harness.mutate.reach import Reached
from harness.mutate.run import Teller
from harness.store.mutate.values import Fate, Fated, Mutation

EVERY = 30.0  # seconds between two lines in a log


class Progress(Watching, Teller):
    """A bar where somebody looks on, lines in a log."""

    def __init__(self, mutation: Mutation) -> None:
        self.mutation = mutation
        console = on_stderr()
        self.bar = bars(console)
        super().__init__(console, self.bar)
        self.task = self.bar.add_task(f"SGLang {mutation.release}: importing", total=None)
        self.told = time.monotonic()

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
        if self.bar.disable and time.monotonic() - self.told > EVERY:
            self.told = time.monotonic()
            self.say(text)


def as_data(mutation: Mutation) -> dict[str, Any]:
    """A run as plain data, with what it comes to."""
    data: dict[str, Any] = msgspec.to_builtins(mutation)
    counts, score = mutation.counts, mutation.score
    said = {"counts": counts, "score": score, "green": mutation.green}
    return {**data, **said, "problems": mutation.all_problems}


def as_listed(mutation: Mutation) -> dict[str, Any]:
    """A run in one line of the store's list."""
    counts = ", ".join(f"{count} {name}" for name, count in mutation.counts.items())
    score = "nothing reached" if mutation.score is None else f"{mutation.score:.1f} % killed"
    return {
        "id": mutation.id,
        "kind": "mutate",
        "started": mutation.started,
        "status": mutation.status,
        "seconds": mutation.seconds,
        "green": mutation.green,
        "score": mutation.score,
        "summary": f"{mutation.release}: {score}; {counts}",
        "command": mutation.command,
    }


def write(mutation: Mutation, arguments: argparse.Namespace) -> None:
    """The files that were asked for, and the page in any case."""
    import json

    pages.find_reports()
    from reports.mutate import markdown, page

    html = arguments.html or pages.default_page().with_name("mutate.html")
    page.write(mutation, html)
    options.say(f"the page: {html}")
    if arguments.markdown:
        arguments.markdown.parent.mkdir(parents=True, exist_ok=True)
        arguments.markdown.write_text(markdown.text(mutation))
    if arguments.record:
        arguments.record.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(as_data(mutation), indent=1, ensure_ascii=False)
        arguments.record.write_text(pages.without_places(text) + "\n")


def show(mutation: Mutation, arguments: argparse.Namespace) -> None:
    if arguments.json:
        options.print_json(as_data(mutation))
        return
    pages.find_reports()
    from reports.mutate import terminal

    terminal.show(mutation, options.console())


def show_list(faults: Sequence[Fault], made: Made, sources: Sources, as_json: bool) -> None:
    """The faults with their diffs, and nothing run."""
    if as_json:
        listed = msgspec.to_builtins(faults)
        options.print_json({"faults": listed, "dropped": msgspec.to_builtins(made.dropped)})
        return
    pages.find_reports()
    from reports.mutate import terminal

    console = options.console()
    for fault in faults:
        source = sources.read(fault.module)
        assert source is not None
        terminal.fault(fault, fates.diff_of(fault, source.text), console)
    console.print(
        f"{len(faults)} of {len(made.faults)} faults; {len(made.dropped)} more were dropped: "
        "they do not compile, or are the same code"
    )
