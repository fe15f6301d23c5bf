"""An evaluation as Markdown, for the summary of a job or a comment on a pull request."""

from __future__ import annotations

from harness.store.eval.values import Evaluation
from reports.eval import view
from reports.eval.view import EvalView
from reports.shared import formatting
from reports.shared.formatting import ReportMark
from reports.shared.markdown import escape_text, render_code, render_table

MAX_TABLE_ROWS = 200  # rows of a table; what does not fit is counted
MAX_PROBLEMS = 30


def render_markdown(evaluation: Evaluation) -> str:
    seen = view.make_view(evaluation)
    parts = [render_heading(seen), render_facts(seen)]
    parts.append(
        "\n".join(f"- **{escape_text(problem)}**" for problem in seen.problems[:MAX_PROBLEMS])
    )
    if len(seen.problems) > MAX_PROBLEMS:
        parts.append(f"… and {len(seen.problems) - MAX_PROBLEMS} more.")
    parts += [render_configurations(seen), render_comparisons(seen), render_faults(seen)]
    return "\n\n".join(part for part in parts if part) + "\n"


def render_heading(eval_view: EvalView) -> str:
    sign, word = ("✓", "green") if eval_view.green else ("✗", "RED")
    name = escape_text(formatting.to_single_line(eval_view.evaluation.name))
    return f"## {sign} Evaluation {name}: {word}"


def render_facts(eval_view: EvalView) -> str:
    said = [f"{number} {mark.word}" for mark, number in eval_view.counts] or ["no comparisons"]
    said += [eval_view.caught_summary] if eval_view.faults else []
    asked = escape_text(", ".join(f"{name}: {fact}" for name, fact in eval_view.settings))
    took = formatting.format_duration(eval_view.evaluation.seconds)
    return f"**{', '.join(said)}**, in {took}. {asked}."


def render_configurations(eval_view: EvalView) -> str:
    tasks = [escape_text(formatting.to_single_line(task, 30)) for task in eval_view.tasks]
    heads = ["configuration", "", "model", "release", *tasks]
    rows = [
        [
            render_code(row.name),
            _render_mark(row.mark, row.mark.good or row.has_planted_fault),
            escape_text(formatting.to_single_line(row.served.model)),
            escape_text(formatting.to_single_line(row.served.release)),
            *(
                row.scores[task].score_text if task in row.scores else ""
                for task in eval_view.tasks
            ),
            str(row.errors or ""),
            row.accepted_text,
            row.ready_text,
            escape_text(row.remarks),
        ]
        for row in eval_view.configurations
    ]
    return _render_section(
        "Configurations", [*heads, "errors", "accepted", "ready", "to know"], rows
    )


def render_comparisons(eval_view: EvalView) -> str:
    heads = ["base → candidate", "of", "task", "verdict", "drop, or divergence / noise", "items"]
    rows = [
        [
            render_code(row.pair_label),
            escape_text(row.comparison.kind),
            escape_text(row.task),
            _render_mark(row.mark, row.mark.good or row.has_planted_fault)
            + (", fault put in" if row.has_planted_fault else ""),
            row.measure,
            row.counts_text,
        ]
        for row in eval_view.comparisons
    ]
    return _render_section("Comparisons", heads, rows)


def render_faults(eval_view: EvalView) -> str:
    heads = ["fault", "configuration", "", "by", "the user sees", "its code ran"]
    rows = [
        [
            render_code(formatting.to_single_line(row.fault.toggle)),
            escape_text(formatting.to_single_line(row.fault.configuration)),
            _render_mark(row.mark, row.mark.good),
            escape_text(row.detected_by),
            escape_text(formatting.to_single_line(row.fault.user_sees)),
            row.reach_text,
        ]
        for row in eval_view.faults
    ]
    return _render_section("Faults", heads, rows)


def _render_mark(mark: ReportMark, is_fine: bool) -> str:
    return f"{mark.glyph} {mark.word}" if is_fine else f"{mark.glyph} **{mark.word}**"


def _render_section(title: str, heads: list[str], rows: list[list[str]]) -> str:
    if not rows:
        return ""
    more = f"\n\n… and {len(rows) - MAX_TABLE_ROWS} more." if len(rows) > MAX_TABLE_ROWS else ""
    return f"### {title}\n\n{render_table(heads, rows[:MAX_TABLE_ROWS], '---')}{more}"
