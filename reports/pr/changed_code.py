"""The first screen of a review: each changed function, what ran it, and what came of it."""

from __future__ import annotations

from harness.core.wording import format_count
from harness.store.pr.line_results import ChangedFunction, ReviewResult
from harness.store.pr.values import PrRun
from reports.shared.marks import ReportMark, make_marks
from reports.shared.tables import ReportTable, TableRows, make_code_cell, make_mark, make_quiet_cell

MARKS = make_marks("""
    worse         | NO  | ✕ | broken    | Something that ran these lines is worse now.
    no difference | OK  | ✓ | good      | What ran these lines gives the same on both ends.
    not run       | ?   | ○ | stale     | Nothing here runs some of these lines.
    incomplete    | INC | … | stale     | What runs these lines did not fit into the budget.
""")
MAX_NAMED = 2  # items of a row


def get_mark(function: ChangedFunction) -> ReportMark:
    return MARKS[function.result.value]


def sort_functions(run: PrRun) -> list[ChangedFunction]:
    """Sort the worst first; of equals in the order of the files."""
    order = list(ReviewResult)
    return sorted(run.functions, key=lambda one: order.index(one.result))


def make_function_table(run: PrRun) -> ReportTable:
    rows: TableRows = [
        [
            make_code_cell(place := f"{one.path}:{one.line}", f"#{place}" if one.evidence else ""),
            make_code_cell(one.name) if one.name else make_quiet_cell("outside of functions"),
            make_mark(get_mark(one)),
            describe_items(one),
            f"{len(one.unrun)} of {one.changed}" if one.unrun else "",
        ]
        for one in sort_functions(run)
    ]
    heads = ("where", "function", "result", "ran by", "lines not run")
    return ReportTable("Changed code", heads, rows, ("lines not run",))


def describe_items(function: ChangedFunction) -> str:
    """Name a few of the items that ran a function, and count the others."""
    names = [name.rpartition("/")[2] for name in function.ran_by]
    more = len(names) - MAX_NAMED
    shown = ", ".join(names[:MAX_NAMED]) or "nothing"
    return f"{shown} and {format_count(more, 'other')}" if more > 0 else shown


def list_worse(run: PrRun) -> list[ChangedFunction]:
    """List the functions with evidence against them."""
    return [one for one in run.functions if one.evidence]
