"""The tables of a history: failures, flaky items, slower ones, costs."""

from __future__ import annotations

from collections.abc import Sequence

from harness.core.wording import format_duration
from harness.runs.history.values import Timeline, TimelineState
from reports.history import view
from reports.history.view import STATE_MARKS, HistoryView
from reports.shared.formatting import to_single_line
from reports.shared.tables import ReportTable, TableCell, TableRows, make_mark, make_quiet_cell

MAX_TITLE_LENGTH = 80


def make_tables(history_view: HistoryView, max_nights: int) -> list[ReportTable]:
    """Make the tables of items that a person has to look at."""
    mended = history_view.history.select_by_state(TimelineState.MENDED)
    failures = {
        "Failing": history_view.failing,
        "Known bugs": history_view.known_bugs,
        "Mended": mended,
    }
    return [
        *(
            make_failure_table(title, lines, history_view, max_nights)
            for title, lines in failures.items()
        ),
        make_flaky_table(history_view, max_nights),
        make_slower_table(history_view),
    ]


def make_failure_table(
    title: str, lines: Sequence[Timeline], history_view: HistoryView, max_nights: int
) -> ReportTable:
    rows: TableRows = [
        [
            make_mark(STATE_MARKS[line.state]),
            *_make_name_cells(line),
            _make_nights_cell(line, history_view, max_nights),
            view.describe_since(line, history_view),
            make_quiet_cell(to_single_line(view.describe_last_failure(line), MAX_TITLE_LENGTH)),
        ]
        for line in lines
    ]
    return ReportTable(title, ("", "kind", "item", "nights", "since", "message"), rows)


def make_flaky_table(history_view: HistoryView, max_nights: int) -> ReportTable:
    rows: TableRows = [
        [
            f"{line.score.share:.0%}",
            *_make_name_cells(line),
            _make_nights_cell(line, history_view, max_nights),
            f"{line.score.differing} of {line.score.compared} differ",
        ]
        for line in history_view.flaky
    ]
    return ReportTable("Flaky", ("flaky", "kind", "item", "nights", "repeats"), rows)


def make_slower_table(history_view: HistoryView) -> ReportTable:
    rows: TableRows = [
        [f"{line.slowdown:.1f} times", *_make_name_cells(line), *_make_time_cells(line)]
        for line in history_view.slower
    ]
    return ReportTable("Slower than before", ("slower", "kind", "item", "newest", "median"), rows)


def make_costliest_table(history_view: HistoryView) -> ReportTable:
    rows: TableRows = [
        [history_view.describe_cost(line), *_make_name_cells(line), *_make_time_cells(line)]
        for line in history_view.costliest
    ]
    return ReportTable("Most expensive", ("cost", "kind", "item", "newest", "median"), rows)


def make_cost_table(history_view: HistoryView) -> ReportTable:
    rows: TableRows = [
        [to_single_line(name, 60), *costs] for name, *costs in history_view.cost_rows
    ]
    return ReportTable("Cost", ("cost", "all nights", "newest night"), rows)


def _make_name_cells(line: Timeline) -> list[str]:
    return [line.item.kind, to_single_line(line.item.title, MAX_TITLE_LENGTH)]


def _make_time_cells(line: Timeline) -> list[str]:
    points = line.informative_points
    newest = points[-1].main_observation.seconds if points else 0.0
    return [format_duration(newest), format_duration(line.median_seconds)]


def _make_nights_cell(line: Timeline, history_view: HistoryView, max_nights: int) -> TableCell:
    marks = view.make_night_marks(line, len(history_view.history.nights))
    return TableCell("", nights=tuple(marks[-max_nights:]))
