"""The progress of a matrix run on stderr: a bar on a terminal, a line for each failed attempt."""

from __future__ import annotations

from collections.abc import Iterable

from harness.cli.progress_display import ProgressBars
from harness.core.outcomes import Outcome
from harness.runs.matrix.cell_plan import MatrixCell
from harness.store.matrix.values import CellAttempt


class MatrixProgress(ProgressBars):
    def __init__(self, cell_count: int, done_count: int, cells: Iterable[MatrixCell]) -> None:
        super().__init__()
        self.task = self.bar.add_task("cells", total=cell_count, completed=done_count)
        self.values = {cell.identity: cell.values for cell in cells}

    def report_attempts(self, attempts: Iterable[tuple[str, CellAttempt]]) -> None:
        for cell, attempt in attempts:
            if attempt.last:
                self.bar.advance(self.task)
            if attempt.outcome is not Outcome.PASSED:
                self._report_failure(cell, attempt)

    def _report_failure(self, cell: str, attempt: CellAttempt) -> None:
        values = ", ".join(f"{axis} {value}" for axis, value in self.values[cell].items())
        retry = "" if attempt.last else "; it is run again"
        text = f"{attempt.outcome.value}: {cell} ({values}): {attempt.how}{retry}"
        self.print_line(text)
