"""An evaluation as Markdown, for the summary of a job or a comment on a pull request."""

from __future__ import annotations

from harness.store.eval.values import Evaluation
from reports.eval import view
from reports.eval.view import EvalView
from reports.shared import texts
from reports.shared.markdown import code, escaped, table
from reports.shared.texts import Mark

LIMIT = 200  # rows of a table; what does not fit is counted
PROBLEMS = 30


def text(evaluation: Evaluation) -> str:
    seen = view.make(evaluation)
    parts = [heading(seen), facts(seen)]
    parts.append("\n".join(f"- **{escaped(problem)}**" for problem in seen.problems[:PROBLEMS]))
    if len(seen.problems) > PROBLEMS:
        parts.append(f"… and {len(seen.problems) - PROBLEMS} more.")
    parts += [configurations(seen), comparisons(seen), faults(seen)]
    return "\n\n".join(part for part in parts if part) + "\n"


def heading(seen: EvalView) -> str:
    sign, word = ("✓", "green") if seen.green else ("✗", "RED")
    name = escaped(texts.line(seen.evaluation.name))
    return f"## {sign} Evaluation {name}: {word}"


def facts(seen: EvalView) -> str:
    said = [f"{number} {mark.word}" for mark, number in seen.counts] or ["no comparisons"]
    said += [seen.noticed] if seen.faults else []
    asked = escaped(", ".join(f"{name}: {fact}" for name, fact in seen.asked))
    took = texts.duration(seen.evaluation.seconds)
    return f"**{', '.join(said)}**, in {took}. {asked}."


def configurations(seen: EvalView) -> str:
    tasks = [escaped(texts.line(task, 30)) for task in seen.tasks]
    heads = ["configuration", "", "model", "release", *tasks]
    rows = [
        [
            code(row.name),
            _mark(row.mark, row.mark.good or row.meant),
            escaped(texts.line(row.served.model)),
            escaped(texts.line(row.served.release)),
            *(row.scores[task].told if task in row.scores else "" for task in seen.tasks),
            str(row.errors or ""),
            row.accepted,
            row.ready,
            escaped(row.told),
        ]
        for row in seen.configurations
    ]
    return _table("Configurations", [*heads, "errors", "accepted", "ready", "to know"], rows)


def comparisons(seen: EvalView) -> str:
    heads = ["base → candidate", "of", "task", "verdict", "drop, or divergence / noise", "items"]
    rows = [
        [
            code(row.names),
            escaped(row.compared.kind),
            escaped(row.task),
            _mark(row.mark, row.mark.good or row.meant) + (", fault put in" if row.meant else ""),
            row.measure,
            row.counts,
        ]
        for row in seen.pairings
    ]
    return _table("Comparisons", heads, rows)


def faults(seen: EvalView) -> str:
    heads = ["fault", "configuration", "", "by", "the user sees", "its code ran"]
    rows = [
        [
            code(texts.line(row.fault.toggle)),
            escaped(texts.line(row.fault.configuration)),
            _mark(row.mark, row.mark.good),
            escaped(row.by),
            escaped(texts.line(row.fault.user_sees)),
            row.ran,
        ]
        for row in seen.faults
    ]
    return _table("Faults", heads, rows)


def _mark(mark: Mark, fine: bool) -> str:
    return f"{mark.glyph} {mark.word}" if fine else f"{mark.glyph} **{mark.word}**"


def _table(title: str, heads: list[str], rows: list[list[str]]) -> str:
    if not rows:
        return ""
    more = f"\n\n… and {len(rows) - LIMIT} more." if len(rows) > LIMIT else ""
    return f"### {title}\n\n{table(heads, rows[:LIMIT], '---')}{more}"
