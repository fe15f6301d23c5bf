"""A mutation run as Markdown, for the summary of a job."""

from __future__ import annotations

from harness.store.mutate.values import Mutation
from reports.mutate import view
from reports.mutate.view import MARKS, Share

MOST = 50  # survivors with their diff; a summary has a limit


def text(run: Mutation) -> str:
    seen = view.make(run)
    sign = "✅" if run.green else "❌"
    parts = [f"## {sign} unfix mutate\n\n{view.sentence(run)}\n"]
    if run.problems:
        parts.append("\n".join(f"- ❌ {_line(problem)}" for problem in run.problems) + "\n")
    if run.fates:
        parts += [_table("family", seen.families), _table("operator", seen.operators)]
    for share in seen.survivors:
        parts.append(f"### {len(share.fates)} survived in `{share.name}`\n")
        for fated in share.fates[:MOST]:
            fault = fated.fault
            parts.append(
                f"**{fault.id}** {_line(fault.words)} (`{fault.operator}`, line {fault.line})  \n"
                f"{_line(view.why(fated))}  \n"
                f"`{view.again(run, fated)}`\n\n````diff\n{fated.diff.strip()}\n````\n"
            )
    for share in seen.unreached:
        parts.append(f"- {len(share.fates)} unreached in `{share.name}`")
    if run.elsewhere:
        parts.append(f"- {_line(run.elsewhere)}")
    left = [f"- not asked: {_line(told)}" for told in run.left_out]
    return "\n".join([*parts, *left]) + "\n"


def _table(title: str, shares: list[Share]) -> str:
    head = " | ".join(f"{mark.glyph} {word}" for word, mark in MARKS.items())
    rows = [f"| {title} | killed of reached | {head} |", "|---|--:|" + "--:|" * len(MARKS)]
    for share in shares:
        counts = " | ".join(str(count or "") for count in share.counts.values())
        rows.append(f"| {share.name} | {share.told} | {counts} |")
    return "\n".join(rows) + "\n"


def _line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
