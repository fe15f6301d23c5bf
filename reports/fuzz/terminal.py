"""A fuzzing run on a terminal, during the run and at its end."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from harness.runs.fuzz.failure_replay import ReplayResult
from harness.runs.fuzz.messages import FileCoverage, FuzzResult, FuzzTestResult, RunFailure
from reports.shared.stand_ins import describe_run_stand_ins
from reports.shared.terminal import to_plain_text

MAX_ROWS = 12  # tests in the table of a terminal


def format_summary(run: FuzzResult) -> str:
    """Format a run in one line."""
    toggled = format_share(
        sum(row.toggled for row in run.coverage), sum(r.toggled_of for r in run.coverage)
    )
    files = format_share(
        sum(row.lines for row in run.coverage), sum(r.lines_of for r in run.coverage)
    )
    tried = sum(bool(test.examples and not test.left_out) for test in run.tests)
    applicable = sum(not test.left_out for test in run.tests)
    rate = run.examples / max(run.seconds, 0.001)
    known_count = len(run.failures) - len(run.new_failures)
    known = f", {known_count} known" if known_count else ""
    return (
        f"{run.seconds:.0f} of {run.budget:.0f} s: {run.examples} examples, {rate:.0f}/s; "
        f"{tried} of {applicable} tests; lines run: {toggled} of the toggled code, {files} of its "
        f"files; {len(run.new_failures)} failures{known}"
    )


def format_share(part: int, total: int) -> str:
    return f"{part}/{total}" if total else "none"


def make_test_table(run: FuzzResult, max_rows: int = MAX_ROWS) -> Table:
    """Make a table: failing tests, then those with most examples, each with its nearest edge."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("test", "SGLang", "examples", "per s", "nearest to an edge"):
        table.add_column(name, justify="right" if name in ("examples", "per s") else "left")
    tried = [test for test in run.tests if test.examples]
    failing = {(failure.repro.test, failure.repro.release) for failure in run.new_failures}
    tried.sort(key=lambda test: ((test.test, test.release) not in failing, -test.examples))
    for test in tried[:max_rows]:
        style = "red" if (test.test, test.release) in failing else ""
        rate = test.examples / test.seconds if test.seconds else 0.0
        title = Text(test.test.partition("::")[2].removeprefix("test_"), style=style)
        edge = describe_nearest_edge(test)
        table.add_row(title, test.release, str(test.examples), f"{rate:.0f}", edge)
    if len(tried) > max_rows:
        table.add_row(f"and {len(tried) - max_rows} more")
    return table


def describe_nearest_edge(test: FuzzTestResult) -> str:
    best = ", ".join(f"{label} {value:.4g}" for label, value in sorted(test.targets.items()))
    return "every possible example" if test.exhausted and not best else best


def make_coverage_table(rows: list[FileCoverage]) -> Table:
    table = Table("file", "SGLang", "toggled code", "whole file", box=None, pad_edge=False)
    for row in rows:
        toggled, lines = (row.toggled, row.toggled_of), (row.lines, row.lines_of)
        table.add_row(row.file, row.release, format_share(*toggled), format_share(*lines))
    return table


def print_run(run: FuzzResult, console: Console) -> None:
    """Print a whole run at its end."""
    parts: list[RenderableType] = [make_test_table(run, max_rows=len(run.tests)), ""]
    if run.coverage:
        parts += [make_coverage_table(run.coverage), ""]
    console.print(Group(*parts))
    for test in run.tests:
        if test.left_out:
            console.print(
                f"left out: {escape(test.test)} on {test.release}: {escape(test.left_out)}"
            )
    for problem in run.problems:
        console.print(f"[red]problem[/]: {escape(problem)}", soft_wrap=True)
    for failure in run.failures:
        _print_failure(console, failure)
    if stand_ins := describe_run_stand_ins(run.device, (test.stand_ins for test in run.tests)):
        console.print(to_plain_text(stand_ins, "dim"), soft_wrap=True)
    console.print(f"seed {run.seed}; {format_summary(run)}")


def _print_failure(console: Console, saved_failure: RunFailure) -> None:
    failure = saved_failure.repro
    as_found = "" if failure.shrunk else " (not shrunk)"
    word = "[yellow]known[/]" if saved_failure.known else "[red]failed[/]"
    console.print(f"{word}: {escape(saved_failure.name)}{as_found}", soft_wrap=True)
    if saved_failure.known:
        names = ", ".join(saved_failure.known)
        console.print(
            f"    this release has the bug of {names}: with the fix applied it passes",
            soft_wrap=True,
        )
    lines = [failure.test, f"{failure.error}: {failure.headline}", failure.where]
    for text in [*lines, *failure.arguments, saved_failure.replay]:
        if text:
            console.print(f"    {escape(text)}", soft_wrap=True)


def print_replays(replays: list[ReplayResult], console: Console) -> None:
    for one in replays:
        verdict = "[red]fails[/]" if one.fails else "[green]passes[/]"
        console.print(f"{verdict} on SGLang {one.release}: {escape(one.test)}", soft_wrap=True)
        for text in ([one.headline] if one.fails else []) + one.arguments:
            console.print(f"    {escape(text)}", soft_wrap=True)
