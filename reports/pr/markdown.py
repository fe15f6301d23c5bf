"""A review as Markdown, for a comment on the pull request."""

from __future__ import annotations

from harness.store.pr.values import PrRun
from reports.pr import view
from reports.pr.view import ReviewSection
from reports.shared import markdown
from reports.shared.markdown import escape_text, render_code_block, render_report_table

MARKER = "<!-- unfix pr -->"  # by which the workflow finds its comment again
MAX_ROWS = 15  # of a table: GitHub limits a comment to 65,536 characters
MAX_DETAILS = 8  # of a part
MAX_PROBLEM = 400  # characters of a line
MAX_CHARACTERS = 60_000


def render_markdown(run: PrRun) -> str:
    parts = [
        MARKER,
        markdown.render_heading("unfix pr", run.green),
        escape_text(view.describe_run(run)),
        markdown.render_list(map(_shorten_text, run.problems), MAX_ROWS),
    ]
    sections = [_render_section(section) for section in view.make_sections(run)]
    notes = "\n".join(f"- {escape_text(note)}" for note in run.notes)
    parts += [*sections, notes]
    text = markdown.join_parts(parts)
    if len(text) > MAX_CHARACTERS:
        short = [_render_section(one, with_details=False) for one in view.make_sections(run)]
        text = markdown.join_parts([*parts[:4], *short, notes])
    return text


def _shorten_text(text: str) -> str:
    return text if len(text) <= MAX_PROBLEM else f"{text[:MAX_PROBLEM]} …"


def _render_section(section: ReviewSection, with_details: bool = True) -> str:
    body = [render_report_table(section.table, MAX_ROWS).partition("\n\n")[2]]
    for detail in section.details[:MAX_DETAILS] if with_details else ():
        text = "\n".join(detail.lines)
        body.append(f"{detail.mark.glyph} **{escape_text(detail.title)}**")
        body += [render_code_block(text)] if text else []
        body += [render_code_block(detail.diff.strip(), "diff")] if detail.diff else []
    more = len(section.details) - MAX_DETAILS
    if with_details and more > 0:
        body.append(f"… and {more} more on the page.")
    title = f"<b>{escape_text(section.title)}</b>: {escape_text(section.summary)}"
    shown = [part for part in body if part]
    return (
        markdown.render_folded(title, shown)
        if shown
        else f"**{escape_text(section.title)}**: {escape_text(section.summary)}"
    )
