"""A failure as an issue: its message, its first night, its replay command, its suspected fix."""

from __future__ import annotations

import hashlib
import re

from harness.core.wording import format_count
from harness.runs.history.failure_evidence import FailureEvidence
from harness.runs.history.values import Timeline, TimelineState
from reports.history import view as history_view
from reports.history.view import HistoryView
from reports.shared import markdown
from reports.shared.formatting import to_single_line
from reports.shared.markdown import escape_text, render_code, render_code_block


def make_file_name(line: Timeline) -> str:
    """Make a name that is the same for the same failure; a digest separates equal titles."""
    words = re.sub(r"[^a-z0-9.]+", "-", line.item.title.lower()).strip("-.")[:60].strip("-.")
    digest = hashlib.sha256(f"{line.item.kind} {line.item.key}".encode()).hexdigest()[:6]
    return f"{line.item.kind}-{words or 'failure'}-{digest}.md"


def render_issue(line: Timeline, evidence: FailureEvidence, search: str, view: HistoryView) -> str:
    """Render an issue; `search` is Markdown: the outcome of a search, or why there is none."""
    again = "fails again" if line.state is TimelineState.BACK else "fails"
    message = evidence.message or history_view.describe_last_failure(line)
    parts = [
        f"# {_escape_title(f'{line.item.kind}: {line.item.title} {again}')}",
        f"**{escape_text(to_single_line(message, 400))}**",
        _render_block("Example", evidence.example),
        _render_block("The end of the output", evidence.tail),
        _render_place(line),
        _render_since(line, view),
        _render_block("Run it again", evidence.replay_command),
        f"## How flaky\n\n{_capitalize_text(escape_text(history_view.describe_flakiness(line)))}.",
        f"## Which fix it is about\n\n{search}",
    ]
    return markdown.join_parts(parts)


def _escape_title(title: str) -> str:
    """Escape a heading that is also the title of an issue, where no markup is read."""
    return to_single_line(title, 200).replace("<", "&lt;").replace("@", "@\u2060").replace("`", "'")


def _render_block(head: str, text: str) -> str:
    return f"## {head}\n\n{render_code_block(text)}" if text.strip() else ""


def _render_place(line: Timeline) -> str:
    item, last = line.item, line.informative_points[-1].main_observation
    facts = dict([("release", item.release), ("device", item.device), *item.details])
    facts |= {"ran with": history_view.describe_versions(last.versions), "run": last.run_id}
    return "## Where\n\n" + "\n".join(
        f"- {escape_text(name)}: {render_code(to_single_line(value, 300))}"
        for name, value in facts.items()
        if value
    )


def _render_since(line: Timeline, view: HistoryView) -> str:
    nights, last_ok = view.history.nights, line.last_ok
    first = line.since_night if line.since_night is not None else len(nights) - 1
    sentences = [f"It fails since the night of {view.days[first]}."]
    if last_ok is None:
        sentences.append(
            f"It did not pass in any night since {view.days[0]}: perhaps it never did."
        )
    else:
        before = last_ok.main_observation.versions
        after = line.informative_points[-1].main_observation.versions
        changes = history_view.describe_version_changes(before, after)
        sentences += [
            f"It passed in the night of {view.days[last_ok.night_index]}, "
            f"with {escape_text(history_view.describe_versions(before))}.",
            f"Changed between: {escape_text('; '.join(changes)) or 'nothing that was recorded'}.",
        ]
    if line.state is TimelineState.BACK and line.first_failed is not None:
        night = view.days[line.first_failed]
        sentences.append(f"It had failed before, first in the night of {night}.")
    sentences.append(f"The window has {format_count(len(nights), 'night')}.")
    return "## Since when\n\n" + " ".join(sentences)


def _capitalize_text(text: str) -> str:
    return text[:1].upper() + text[1:]
