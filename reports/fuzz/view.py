"""The tables and phrases that all reports of a fuzzing run share."""

from __future__ import annotations

from harness.core.wording import format_count
from harness.store.fuzz.values import FuzzRun, FuzzTestResult, RunFailure
from reports.shared.formatting import link_source
from reports.shared.stand_ins import describe_run_stand_ins
from reports.shared.tables import ReportTable, TableCell, TableRows, make_code_cell


def describe_run(run: FuzzRun) -> str:
    toggled = format_share(
        sum(row.toggled for row in run.coverage), sum(row.toggled_of for row in run.coverage)
    )
    lines = format_share(
        sum(row.lines for row in run.coverage), sum(row.lines_of for row in run.coverage)
    )
    tried = sum(bool(test.examples and not test.left_out) for test in run.tests)
    applicable = sum(not test.left_out for test in run.tests)
    rate = run.examples / max(run.search_seconds, 0.001)
    return (
        f"{run.failure_words} in {tried} of {applicable} tests; "
        f"{format_count(run.examples, 'example')} in {run.search_seconds:.0f} of "
        f"{run.budget:.0f} s, {rate:.0f}/s; "
        f"lines run: {toggled} of the toggled code, {lines} of its files"
    )


def format_share(part: int, total: int) -> str:
    return f"{part}/{total}" if total else "none"


def make_test_table(run: FuzzRun) -> ReportTable:
    """Make a table: failing tests, then those with most examples, each with its nearest edge."""
    failing = {(failure.repro.test, failure.repro.release) for failure in run.new_failures}
    places = {(one.repro.test, one.repro.release): n for n, one in enumerate(run.failures, 1)}
    tried = [test for test in run.tests if test.examples]
    tried.sort(key=lambda test: ((test.test, test.release) not in failing, -test.examples))
    rows: TableRows = [
        [
            TableCell(
                test.test.partition("::")[2].removeprefix("test_"),
                "broken" if (test.test, test.release) in failing else "",
                link=f"#failure-{n}" if (n := places.get((test.test, test.release))) else "",
            ),
            test.release,
            str(test.examples),
            f"{test.examples / test.seconds if test.seconds else 0.0:.0f}",
            _describe_nearest_edge(test),
        ]
        for test in tried
    ]
    heads = ("test", "SGLang", "examples", "per s", "nearest to an edge")
    return ReportTable("Tests", heads, rows, ("examples", "per s"))


def _describe_nearest_edge(test: FuzzTestResult) -> str:
    best = ", ".join(f"{label} {value:.4g}" for label, value in sorted(test.targets.items()))
    return "every possible example" if test.exhausted and not best else best


def make_coverage_table(run: FuzzRun) -> ReportTable:
    rows: TableRows = [
        [
            make_code_cell(row.file, link_source(row.release, row.file, 1)),
            row.release,
            format_share(row.toggled, row.toggled_of),
            format_share(row.lines, row.lines_of),
        ]
        for row in run.coverage
    ]
    return ReportTable("Lines that ran", ("file", "SGLang", "toggled code", "whole file"), rows)


def list_left_out(run: FuzzRun) -> list[str]:
    return [
        f"left out: {test.test} on {test.release}: {test.left_out}"
        for test in run.tests
        if test.left_out
    ]


def describe_failure(failure: RunFailure) -> tuple[str, list[str]]:
    """Describe a failure: a head, and the lines of its example and of its replay."""
    repro = failure.repro
    word = "known" if failure.known else "failed"
    lines = []
    if failure.known:
        names = ", ".join(failure.known)
        lines = [f"this release has the bug of {names}: with the fix applied it passes"]
    lines += [repro.test, f"{repro.error}: {repro.headline}", repro.where]
    lines += [*repro.arguments, failure.replay]
    head = f"{word}: {failure.name}{'' if repro.shrunk else ' (not shrunk)'}"
    return head, [line for line in lines if line]


def describe_stand_ins(run: FuzzRun) -> str:
    return describe_run_stand_ins(run.device, (test.stand_ins for test in run.tests))
