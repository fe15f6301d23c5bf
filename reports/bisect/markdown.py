"""A search as Markdown, for a job's summary or an issue."""

from __future__ import annotations

from harness.store.bisect.values import Search
from reports.bisect import view
from reports.bisect.view import GLYPHS
from reports.shared import texts


def text(search: Search) -> str:
    seen = view.make(search)
    lines = [
        f"## unfix bisect {search.kind}: {search.verdict or search.status}",
        "",
        _safe(search.summary),
        "",
        f"`{_code(' '.join(search.words))}`, {len(search.trials)} runs, "
        f"{texts.duration(search.seconds)}",
        "",
    ]
    for stop in seen.stops:
        if stop.trial or stop.role:
            said = f"{GLYPHS[stop.trial.answer]} {_safe(stop.trial.how)}" if stop.trial else "·"
            lines.append(f"- {_safe(stop.name)}: {said}")
    for part in seen.parts:
        lines += ["", f"### {part.part.name}: {part.title}", ""]
        lines += ["| run | with | why | outcome |", "|---|---|---|---|"]
        for row in part.rows:
            names = "nothing" if not row.toggles else ", ".join(sorted(row.toggles))
            if len(row.toggles) > 3:
                names = f"{len(row.toggles)} of {len(part.part.toggles)}"
            told = f"{GLYPHS[row.answer]} {_safe(row.told)}".replace("|", "\\|")
            lines.append(f"| {row.number} | {names} | {row.why} | {told} |")
    for blamed in seen.blamed:
        toggle, patch = blamed.toggle, blamed.patch
        upstream = ", ".join(f"#{number}" for number in toggle.upstream)
        lines += ["", f"### {toggle.id}: {_safe(toggle.title)}", ""]
        lines += [f"{toggle.family}, {toggle.symptom}, {upstream}; {blamed.does}:", "", "```diff"]
        lines += [*texts.visible(patch).splitlines(), "```"]
    return "\n".join(lines) + "\n"


def _safe(text: str) -> str:
    return texts.visible(text).replace("<", "&lt;").replace("\n", " ")


def _code(text: str) -> str:
    return texts.visible(text).replace("`", "'").replace("\n", " ")
