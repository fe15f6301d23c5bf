"""A matrix run as one HTML file: up to ten thousand cells, of which the failures are expanded."""

from __future__ import annotations

from typing import Any

from harness.core.outcomes import Outcome
from harness.store.matrix.values import MatrixCellResult, MatrixRun
from reports.matrix import view
from reports.matrix.view import OUTCOME_MARKS, MatrixView
from reports.shared import html_file
from reports.shared.formatting import to_single_line
from reports.shared.html_file import embed_json

STYLES = ("shared/runs.css", "shared/bars.css", "matrix/page.css")
SCRIPTS = ("shared/dom.js", "matrix/page.js")
MAX_LOG_LETTERS = 2_000_000  # letters of logs on a page; cells beyond have only their replay line
MAX_AXES = 12  # axes with a chart
MAX_VALUES = 12  # values of one axis in its chart


def render_page(run: MatrixRun) -> str:
    matrix_view = view.make_view(run)
    values = {
        "report": matrix_view,
        "run": run,
        "flaky": view.list_flaky_cells(run.cells)[:MAX_VALUES],
        "view": view,
        "longest": max((cell.seconds for cell in matrix_view.slowest), default=1.0) or 1.0,
        "axes": MAX_AXES,
        "values": MAX_VALUES,
        "index": embed_json(make_index(matrix_view)),
    }
    return html_file.render_template(
        "matrix/page.html.j2",
        values,
        [run.name, f"SGLang {sglang}" if (sglang := run.machine.get("sglang")) else ""],
        [run.commit],
        styles=STYLES,
        scripts=SCRIPTS,
    )


def make_index(matrix_view: MatrixView) -> dict[str, Any]:
    """Make a short form of all cells: values and outcomes are indices into shared lists."""
    run = matrix_view.run
    axes: dict[str, dict[str, int]] = {}
    marks = {word: place for place, word in enumerate(OUTCOME_MARKS)}
    green = [cell for cell in run.cells if cell.outcome is Outcome.PASSED]
    rows = [_make_row(cell, axes, marks) for cell in [*matrix_view.failures, *green]]
    return {
        "families": [],
        "marks": html_file.marks_to_json(OUTCOME_MARKS.values()),
        "words": list(OUTCOME_MARKS),
        "axes": [
            {
                "name": to_single_line(axis, 40),
                "values": [to_single_line(value, 60) for value in values],
            }
            for axis, values in axes.items()
        ],
        "cells": rows,
        "failures": _describe_failures(matrix_view),
        "replay": to_single_line(f"unfix matrix run {run.file} --cell ", 400),
    }


def _make_row(
    cell: MatrixCellResult, axes: dict[str, dict[str, int]], marks: dict[str, int]
) -> list[Any]:
    """Make a row of identity, outcome, seconds, losses, and pairs of axis and value."""
    pairs = []
    for axis, value in (*cell.values.items(), (view.WORK_AXIS, cell.work)):
        known = axes.setdefault(axis, {})
        pairs += [list(axes).index(axis), known.setdefault(value, len(known))]
    name, seconds = to_single_line(cell.identity), round(cell.seconds, 2)
    return [name, marks[cell.outcome_word], seconds, cell.lost_attempt_count, pairs]


def _describe_failures(matrix_view: MatrixView) -> list[dict[str, str]]:
    """Describe the details of the failures, in the order of their rows."""
    letters = 0
    details = []
    for cell in matrix_view.failures:
        log = view.get_output_tail(cell)
        letters += len(log)
        details.append(
            {
                "how": view.describe_attempts(cell),
                "log": log if letters < MAX_LOG_LETTERS else "",
                "replay": view.make_replay_command(matrix_view.run, cell),
                "command": view.format_command(cell),
                "inside": view.format_inside_counts(cell),
                "where": to_single_line(cell.attempts[-1].where) if cell.attempts else "",
                "why": to_single_line(cell.why, 200),
            }
        )
    return details
