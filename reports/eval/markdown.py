"""An evaluation as Markdown, for the summary of a job or a comment on a pull request."""

from __future__ import annotations

from harness.core.wording import format_duration
from harness.store.eval.values import Evaluation
from reports.eval import tables, view
from reports.shared import formatting, markdown
from reports.shared.markdown import escape_text

MAX_PROBLEMS = 30


def render_markdown(evaluation: Evaluation) -> str:
    eval_view = view.make_view(evaluation)
    name = escape_text(formatting.to_single_line(evaluation.name))
    settings = escape_text(", ".join(f"{name}: {fact}" for name, fact in eval_view.settings))
    return markdown.join_parts(
        [
            markdown.render_heading(f"Evaluation {name}", eval_view.green),
            f"**{eval_view.counts_text}**, in {format_duration(evaluation.seconds)}. {settings}.",
            markdown.render_list(eval_view.problems, MAX_PROBLEMS),
            *map(markdown.render_report_table, tables.make_tables(eval_view)),
            *map(escape_text, eval_view.stand_in_lines),
        ]
    )
