"""A failure as an issue: what, since when, how to run it again, which fix it is about."""

from __future__ import annotations

import hashlib
import re

from harness.runs.history.failure_evidence import FailureEvidence
from harness.runs.history.values import NightHistory, Timeline, TimelineState
from reports.history import view as history_view
from reports.history.view import HistoryView
from reports.shared import formatting
from reports.shared.formatting import to_single_line as short
from reports.shared.markdown import escape_text, render_code, render_code_block


def make_file_name(line: Timeline) -> str:
    """The same for the same failure; two of one title are told apart by their keys."""
    words = re.sub(r"[^a-z0-9.]+", "-", line.item.title.lower()).strip("-.")[:60].strip("-.")
    digest = hashlib.sha256(f"{line.item.kind} {line.item.key}".encode()).hexdigest()[:6]
    return f"{line.item.kind}-{words or 'failure'}-{digest}.md"


def render_issue(line: Timeline, evidence: FailureEvidence, search: str, view: HistoryView) -> str:
    """The search is Markdown already: what a search came to, or why there is none."""
    thing = line.item
    again = "fails again" if line.state is TimelineState.BACK else "fails"
    parts = [
        f"# {_escape_title(f'{thing.kind}: {thing.title} {again}')}",
        f"**{escape_text(short(evidence.message or history_view.describe_last_failure(line), 400))}**",
        _render_block("What shows it", evidence.example),
        _render_block("The end of what it said", evidence.tail),
        _render_place(line, view),
        _render_since(line, view),
        _render_block("Run it again", evidence.replay_command),
        f"## How flaky\n\n{_capitalize(escape_text(history_view.describe_flakiness(line)))}.",
        f"## Which fix it is about\n\n{search}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _escape_title(title: str) -> str:
    """A heading that is as well the title of an issue, where no markup is read."""
    return short(title, 200).replace("<", "&lt;").replace("@", "@\u2060").replace("`", "'")


def _render_block(head: str, text: str) -> str:
    return (
        f"## {head}\n\n{render_code_block(formatting.make_visible(text))}" if text.strip() else ""
    )


def _render_place(line: Timeline, view: HistoryView) -> str:
    thing, last = line.item, line.informative_points[-1].main_observation
    facts = [("release", thing.release), ("device", thing.device), *thing.details]
    facts += [("ran with", history_view.describe_versions(last.versions)), ("run", last.run_id)]
    known = dict(fact for fact in facts if fact[1])
    return "## Where\n\n" + "\n".join(
        f"- {escape_text(key)}: {render_code(short(value, 300))}" for key, value in known.items()
    )


def _render_since(line: Timeline, view: HistoryView) -> str:
    history: NightHistory = view.history
    first = view.days[line.since_night if line.since_night is not None else len(view.days) - 1]
    said = [f"It fails since the night of {first}."]
    if line.last_ok is None:
        said.append(f"No night since {view.days[0]} has seen it ok: it may never have been.")
    else:
        then, now = (
            line.last_ok.main_observation.versions,
            line.informative_points[-1].main_observation.versions,
        )
        said.append(
            f"It was ok in the night of {view.days[line.last_ok.night_index]}, "
            f"with {escape_text(history_view.describe_versions(then))}."
        )
        between = history_view.describe_version_changes(then, now)
        told = "; ".join(escape_text(one) for one in between)
        said.append(f"Changed between: {told or 'nothing that was recorded'}.")
    if line.state is TimelineState.BACK and line.first_failed is not None:
        said.append(f"It had failed before, first in the night of {view.days[line.first_failed]}.")
    nights = history_view.format_count(len(history.nights), "night")
    return "## Since when\n\n" + " ".join([*said, f"The window has {nights}."])


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]
