"""A matrix run as Markdown, for the summary of a job or a comment on a pull request."""

from __future__ import annotations

from harness.store.matrix.values import MatrixRun, Outcome, RanCell
from reports.matrix import view
from reports.matrix.view import MARKS, MatrixView
from reports.shared import texts
from reports.shared.markdown import block, code, escaped, table
from reports.shared.texts import line

FAILURES = 30
SHARES = 60


def text(run: MatrixRun) -> str:
    seen = view.make(run)
    parts = [heading(seen), facts(seen)]
    parts.append("\n".join(f"- **{escaped(problem)}**" for problem in run.problems))
    parts.append("\n".join(f"- {escaped(line(note, 300))}" for note in run.notes))
    parts += [folded(run, cell) for cell in seen.failures[:FAILURES]]
    if len(seen.failures) > FAILURES:
        parts.append(f"… and {len(seen.failures) - FAILURES} more.")
    parts.append(shares(seen))
    return "\n\n".join(part for part in parts if part) + "\n"


def heading(seen: MatrixView) -> str:
    sign, word = ("✓", "green") if seen.green else ("✗", "RED")
    return f"## {sign} Matrix {escaped(line(seen.run.name))}: {word}"


def facts(seen: MatrixView) -> str:
    said = [f"{number} {mark.word}" for mark, number in seen.counts] or ["no cells"]
    told = escaped(", ".join(f"{name}: {fact}" for name, fact in seen.facts))
    return f"**{', '.join(said)}**, in {texts.duration(seen.run.seconds)}. {told}."


def folded(run: MatrixRun, cell: RanCell) -> str:
    title = f"{MARKS[cell.word].glyph} <b>{cell.word}</b> {escaped(view.values(cell))}"
    parts = [f"<details><summary>{title}</summary>", f"{escaped(view.how(cell))}."]
    if log := view.tail(cell):
        parts.append(block(log))
    parts.append(block(view.replay(run, cell)))
    return "\n\n".join([*parts, "</details>"])


def shares(seen: MatrixView) -> str:
    if not seen.failures:
        return ""
    rows = [
        [
            escaped(line(axis.name, 30)),
            code(line(share.value, 40)),
            f"{share.told} ({share.percent:.0f}%)",
            ", ".join(f"{n} {word}" for word, n in share.counts.items() if word != Outcome.GREEN),
        ]
        for axis in seen.axes
        for share in axis.shares
    ]
    if not rows:
        return ""
    more = f"\n\n… and {len(rows) - SHARES} more." if len(rows) > SHARES else ""
    heads = ["axis", "value", "green", "the others"]
    return f"### By value\n\n{table(heads, rows[:SHARES], '---')}{more}"
