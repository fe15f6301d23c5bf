"""A search as Markdown, for a job's summary or an issue."""

from __future__ import annotations

import shlex

from harness.core.wording import format_count, format_duration
from harness.store.bisect.values import BisectSearch
from reports.bisect import view
from reports.bisect.view import GLYPHS, SearchPartView, SearchRow
from reports.shared import markdown
from reports.shared.markdown import escape_text, render_code, render_code_block, render_table


def render_markdown(search: BisectSearch) -> str:
    search_view = view.make_view(search)
    command = render_code(shlex.join(search.symptom_command))
    runs = format_count(len(search.trials), "run")
    parts = [
        f"## unfix bisect {search.kind}: {search.verdict or search.status}",
        escape_text(search.summary),
        f"{command}, {runs}, {format_duration(search.seconds)}",
    ]
    stops = []
    for stop in search_view.stops:
        if stop.trial:
            outcome = f"{GLYPHS[stop.trial.answer]} {escape_text(stop.trial.how)}"
            stops.append(f"- {escape_text(stop.name)}: {outcome}")
        elif stop.role:
            stops.append(f"- {escape_text(stop.name)}: ·")
    parts.append("\n".join(stops))
    for part in search_view.parts:
        rows = [_make_row(part, row) for row in part.rows]
        parts.append(f"### {part.part.name}: {part.title}")
        parts.append(render_table(["run", "with", "why", "outcome"], rows, "---"))
    for culprit in search_view.culprits:
        toggle = culprit.toggle
        upstream = ", ".join(f"#{number}" for number in toggle.upstream)
        parts += [
            f"### {toggle.id}: {escape_text(toggle.title)}",
            f"{toggle.family}, {toggle.symptom}, {upstream}; {culprit.patch_summary}:",
            render_code_block(culprit.patch, "diff"),
        ]
    return markdown.join_parts(parts)


def _make_row(part_view: SearchPartView, row: SearchRow) -> list[str]:
    names = ", ".join(sorted(row.toggles)) or "nothing"
    if len(row.toggles) > 3:
        names = f"{len(row.toggles)} of {len(part_view.part.toggles)}"
    outcome = f"{GLYPHS[row.answer]} {escape_text(row.outcome_text)}"
    return [str(row.number), escape_text(names), row.why, outcome]
