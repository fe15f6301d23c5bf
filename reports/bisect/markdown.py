"""A search as Markdown, for a job's summary or an issue."""

from __future__ import annotations

from harness.store.bisect.values import BisectSearch
from reports.bisect import view
from reports.bisect.view import GLYPHS
from reports.shared import formatting


def render_markdown(search: BisectSearch) -> str:
    seen = view.make_view(search)
    lines = [
        f"## unfix bisect {search.kind}: {search.verdict or search.status}",
        "",
        _escape_text(search.summary),
        "",
        f"`{_escape_code(' '.join(search.words))}`, {len(search.trials)} runs, "
        f"{formatting.format_duration(search.seconds)}",
        "",
    ]
    for stop in seen.stops:
        if stop.trial or stop.role:
            said = (
                f"{GLYPHS[stop.trial.answer]} {_escape_text(stop.trial.how)}" if stop.trial else "·"
            )
            lines.append(f"- {_escape_text(stop.name)}: {said}")
    for part in seen.parts:
        lines += ["", f"### {part.part.name}: {part.title}", ""]
        lines += ["| run | with | why | outcome |", "|---|---|---|---|"]
        for row in part.rows:
            names = "nothing" if not row.toggles else ", ".join(sorted(row.toggles))
            if len(row.toggles) > 3:
                names = f"{len(row.toggles)} of {len(part.part.toggles)}"
            told = f"{GLYPHS[row.answer]} {_escape_text(row.outcome_text)}".replace("|", "\\|")
            lines.append(f"| {row.number} | {names} | {row.why} | {told} |")
    for blamed in seen.culprits:
        toggle, patch = blamed.toggle, blamed.patch
        upstream = ", ".join(f"#{number}" for number in toggle.upstream)
        lines += ["", f"### {toggle.id}: {_escape_text(toggle.title)}", ""]
        lines += [
            f"{toggle.family}, {toggle.symptom}, {upstream}; {blamed.patch_summary}:",
            "",
            "```diff",
        ]
        lines += [*formatting.make_visible(patch).splitlines(), "```"]
    return "\n".join(lines) + "\n"


def _escape_text(text: str) -> str:
    return formatting.make_visible(text).replace("<", "&lt;").replace("\n", " ")


def _escape_code(text: str) -> str:
    return formatting.make_visible(text).replace("`", "'").replace("\n", " ")
