"""The tables of a matrix run: the share of green cells by value, flaky cells, the slowest cells."""

from __future__ import annotations

from harness.core.outcomes import Outcome
from reports.matrix import view
from reports.matrix.view import MatrixView
from reports.shared.formatting import to_single_line
from reports.shared.tables import ReportTable, TableCell, TableRows, make_code_cell, make_quiet_cell

MAX_VALUES = 8  # values of an axis
MAX_SLOWEST = 5


def make_share_table(matrix_view: MatrixView) -> ReportTable:
    """Make a table of the values that failures share; axes that differ most come first."""
    rows: TableRows = []
    for axis in matrix_view.axes if matrix_view.failures else ():
        for place, share in enumerate(axis.shares[:MAX_VALUES]):
            failed = [
                f"{count} {word}" for word, count in share.counts.items() if word != Outcome.PASSED
            ]
            passed = f"{share.fraction_text} ({share.percent:.0f}%)"
            rows.append(
                [
                    "" if place else to_single_line(axis.name, 30),
                    make_code_cell(to_single_line(share.value, 40)),
                    TableCell(passed, "" if failed else "good"),
                    make_quiet_cell(", ".join(failed)),
                ]
            )
        if len(axis.shares) > MAX_VALUES:
            rows.append(["", f"and {len(axis.shares) - MAX_VALUES} more", "", ""])
    return ReportTable("By value", ("axis", "value", "passed", "other outcomes"), rows)


def make_flaky_table(matrix_view: MatrixView) -> ReportTable:
    rows: TableRows = [
        [
            make_code_cell(to_single_line(cell.identity)),
            view.describe_attempts(cell),
            view.format_values(cell),
        ]
        for cell in view.list_flaky_cells(matrix_view.run.cells)[:MAX_VALUES]
    ]
    return ReportTable("Flaky", ("flaky", "attempts", "values"), rows)


def make_slowest_table(matrix_view: MatrixView) -> ReportTable:
    rows: TableRows = [
        [
            make_code_cell(to_single_line(cell.identity)),
            view.format_time_taken(cell),
            view.format_values(cell),
        ]
        for cell in matrix_view.slowest[:MAX_SLOWEST]
    ]
    return ReportTable("Slowest", ("slowest", "took", "values"), rows)
