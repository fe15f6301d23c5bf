"""A review as Markdown, for a comment on the pull request: one screen; the page has the rest."""

from __future__ import annotations

from harness.store.pr.values import PrRun
from reports.pr import changed_code, view
from reports.shared import markdown
from reports.shared.markdown import escape_text, render_report_table

MARKER = "<!-- unfix pr -->"  # by which the workflow finds its comment again
MAX_LINES = 30
MAX_ROWS = 6  # of the table
MAX_EVIDENCE = 3  # functions whose diff is shown
MAX_DIFF = 2  # lines of each
MAX_TEXT = 300  # characters of a sentence


def render_markdown(run: PrRun) -> str:
    table = render_report_table(changed_code.make_function_table(run), MAX_ROWS)
    parts = [
        f"{MARKER}\n{markdown.render_heading('unfix pr', run.green, run.word)}",
        escape_text(view.describe_run(run)),
        table.partition("\n\n")[2] if run.functions else "",
    ]
    shown = [text for one in changed_code.list_worse(run)[:MAX_EVIDENCE] for text in one.evidence]
    parts.append("\n".join(_render_evidence(run)))
    rest = [problem for problem in run.problems if problem not in shown]
    # Each part is set off by an empty line; the last line counts what is left out.
    room = MAX_LINES - 3 - sum(part.count("\n") + 2 for part in parts if part)
    lines = [f"- **{escape_text(_shorten_text(problem))}**" for problem in rest[: max(0, room)]]
    if len(rest) > len(lines):
        lines.append(f"- and {len(rest) - len(lines)} more on the page")
    return markdown.join_parts([*parts, "\n".join(lines)])


def _render_evidence(run: PrRun) -> list[str]:
    lines = []
    for function in changed_code.list_worse(run)[:MAX_EVIDENCE]:
        changed = [line for line in function.diff if line[1:].strip()][:MAX_DIFF]
        again = f" (`{function.again}`)" if function.again else ""
        code = " ".join(f"`{line.replace('`', '')}`" for line in changed)
        lines.append(f"- **{escape_text(function.title)}** {code}{again}")
        lines += [
            f"  - {escape_text(_shorten_text(sentence))}" for sentence in function.evidence[:2]
        ]
    return lines


def _shorten_text(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_TEXT else f"{line[:MAX_TEXT]} …"
