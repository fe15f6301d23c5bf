"""A mutation run as Markdown, for the summary of a job."""

from __future__ import annotations

from harness.store.mutate.values import MutationRun
from reports.mutate import view
from reports.mutate.view import FATE_MARKS, FaultGroup

MAX_SURVIVORS = 50  # survivors with their diff; a summary has a limit


def render_markdown(run: MutationRun) -> str:
    seen = view.make_view(run)
    sign = "✅" if run.green else "❌"
    parts = [f"## {sign} unfix mutate\n\n{view.describe_run(run)}\n"]
    if run.problems:
        parts.append("\n".join(f"- ❌ {_escape_line(problem)}" for problem in run.problems) + "\n")
    if run.fates:
        parts += [_render_table("family", seen.families), _render_table("operator", seen.operators)]
    for share in seen.survivors:
        parts.append(f"### {len(share.outcomes)} survived in `{share.name}`\n")
        for fated in share.outcomes[:MAX_SURVIVORS]:
            fault = fated.fault
            parts.append(
                f"**{fault.id}** {_escape_line(fault.words)} (`{fault.operator}`, line {fault.line})  \n"
                f"{_escape_line(view.describe_outcome(fated))}  \n"
                f"`{view.make_replay_command(run, fated)}`\n\n````diff\n{fated.diff.strip()}\n````\n"
            )
    for share in seen.unreached:
        parts.append(f"- {len(share.outcomes)} unreached in `{share.name}`")
    if run.elsewhere:
        parts.append(f"- {_escape_line(run.elsewhere)}")
    left = [f"- not asked: {_escape_line(told)}" for told in run.left_out]
    return "\n".join([*parts, *left]) + "\n"


def _render_table(title: str, shares: list[FaultGroup]) -> str:
    head = " | ".join(f"{mark.glyph} {word}" for word, mark in FATE_MARKS.items())
    rows = [f"| {title} | killed of reached | {head} |", "|---|--:|" + "--:|" * len(FATE_MARKS)]
    for share in shares:
        counts = " | ".join(str(count or "") for count in share.counts.values())
        rows.append(f"| {share.name} | {share.score_text} | {counts} |")
    return "\n".join(rows) + "\n"


def _escape_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
