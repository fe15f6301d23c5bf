"""A review on a terminal: the headline, then each part with its table and details."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from harness.store.pr.values import PrRun
from reports.pr import changed_code, view
from reports.shared.terminal import (
    TONE_STYLES,
    print_diff,
    print_ending,
    print_tables,
    to_plain_text,
)

if TYPE_CHECKING:
    from rich.console import Console

MAX_ROWS = 40  # of a table; the page has them all


def print_run(run: PrRun, console: Console) -> None:
    for subject in run.subjects[:5]:
        console.print(to_plain_text(subject, "dim"), soft_wrap=True)
    print_tables([changed_code.make_function_table(run)], console, MAX_ROWS)
    _print_evidence(run, console)
    for section in view.make_sections(run):
        console.print(to_plain_text(section.title, "bold"), soft_wrap=True)
        console.print(to_plain_text(section.summary), soft_wrap=True)
        console.print()
        print_tables([section.table], console, MAX_ROWS)
        for detail in section.details[:MAX_ROWS]:
            sign = Text(f"{detail.mark.glyph} ", TONE_STYLES[detail.mark.tone])
            console.print(sign.append_text(to_plain_text(detail.title)), soft_wrap=True)
            for line in detail.lines:
                console.print(to_plain_text(f"  {line}"), soft_wrap=True)
            body = [one for one in detail.diff.splitlines() if not one.startswith(("---", "+++"))]
            print_diff(console, "\n".join(body), "    ")
        if section.details:
            console.print()
    for note in run.notes:
        console.print(to_plain_text(f"note: {note}", "dim"), soft_wrap=True)
    print_ending(console, run.green, view.describe_run(run), run.problems, run.id, run.word)


def _print_evidence(run: PrRun, console: Console) -> None:
    """Print what is worse below the lines that it comes from."""
    for function in changed_code.list_worse(run)[:MAX_ROWS]:
        console.print(to_plain_text(function.title, "bold"), soft_wrap=True)
        print_diff(console, "\n".join(function.diff), "    ")
        for sentence in function.evidence:
            console.print(to_plain_text(f"  {sentence}", "red"), soft_wrap=True)
        if function.again:
            console.print(to_plain_text(f"  {function.again}", "dim"), soft_wrap=True)
        console.print()
