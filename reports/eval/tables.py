"""The three tables of an evaluation: its configurations, its comparisons, its planted faults."""

from __future__ import annotations

from reports.eval.view import EvalView
from reports.shared.formatting import to_single_line
from reports.shared.tables import (
    ReportTable,
    TableCell,
    TableRows,
    make_code_cell,
    make_mark,
    make_quiet_cell,
)


def make_tables(eval_view: EvalView) -> list[ReportTable]:
    return [
        make_configuration_table(eval_view),
        make_comparison_table(eval_view),
        make_fault_table(eval_view),
    ]


def make_configuration_table(eval_view: EvalView) -> ReportTable:
    tasks = [to_single_line(task, 30) for task in eval_view.tasks]
    rows: TableRows = []
    for row in eval_view.configurations:
        scores = (row.scores.get(task) for task in eval_view.tasks)
        rows.append(
            [
                make_code_cell(row.name),
                make_mark(row.mark, row.tone),
                to_single_line(row.served.model),
                to_single_line(row.served.release),
                *(score.score_text if score else "" for score in scores),
                str(row.errors or ""),
                row.accepted_text,
                row.ready_text,
                make_quiet_cell(row.remarks),
            ]
        )
    numbers = (*tasks, "errors", "accepted", "ready")
    heads = ("configuration", "", "model", "release", *numbers, "remarks")
    return ReportTable("Configurations", heads, rows, numbers)


def make_comparison_table(eval_view: EvalView) -> ReportTable:
    rows: TableRows = []
    for row in eval_view.comparisons:
        verdict = make_mark(row.mark, row.tone)
        if row.has_planted_fault:
            verdict = TableCell(f"{row.mark.word}, planted fault", row.tone, mark=row.mark)
        rows.append(
            [
                make_code_cell(row.pair_label),
                to_single_line(row.comparison.kind, 20),
                row.task,
                verdict,
                row.measure,
                make_quiet_cell(row.counts_text),
            ]
        )
    heads = ("base → candidate", "of", "task", "verdict", "drop, or\ndivergence / noise", "items")
    return ReportTable("Comparisons", heads, rows)


def make_fault_table(eval_view: EvalView) -> ReportTable:
    rows: TableRows = [
        [
            make_code_cell(to_single_line(row.fault.toggle)),
            to_single_line(row.fault.configuration),
            make_mark(row.mark),
            row.detected_by,
            to_single_line(row.fault.user_sees),
            row.reach_text,
        ]
        for row in eval_view.faults
    ]
    heads = ("fault", "configuration", "", "by", "the user sees", "its code ran")
    return ReportTable("Faults", heads, rows)
