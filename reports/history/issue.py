"""A failure as an issue: what, since when, how to run it again, which fix it is about."""

from __future__ import annotations

import hashlib
import re

from harness.history.evidence import Evidence
from harness.history.values import History, Line, State
from reports.history import view as history_view
from reports.history.view import HistoryView
from reports.shared import texts
from reports.shared.markdown import block, code, escaped
from reports.shared.texts import line as short


def name(line: Line) -> str:
    """The same for the same failure; two of one title are told apart by their keys."""
    words = re.sub(r"[^a-z0-9.]+", "-", line.thing.title.lower()).strip("-.")[:60].strip("-.")
    digest = hashlib.sha256(f"{line.thing.kind} {line.thing.key}".encode()).hexdigest()[:6]
    return f"{line.thing.kind}-{words or 'failure'}-{digest}.md"


def text(line: Line, evidence: Evidence, search: str, view: HistoryView) -> str:
    """The search is Markdown already: what a search came to, or why there is none."""
    thing = line.thing
    again = "fails again" if line.state is State.BACK else "fails"
    parts = [
        f"# {_title(f'{thing.kind}: {thing.title} {again}')}",
        f"**{escaped(short(evidence.said or history_view.words(line), 400))}**",
        _block("What shows it", evidence.example),
        _block("The end of what it said", evidence.tail),
        _where(line, view),
        _since(line, view),
        _block("Run it again", evidence.replay),
        f"## How flaky\n\n{_capital(escaped(history_view.wavers(line)))}.",
        f"## Which fix it is about\n\n{search}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _title(told: str) -> str:
    """A heading that is as well the title of an issue, where no markup is read."""
    return short(told, 200).replace("<", "&lt;").replace("@", "@\u2060").replace("`", "'")


def _block(head: str, told: str) -> str:
    return f"## {head}\n\n{block(texts.visible(told))}" if told.strip() else ""


def _where(line: Line, view: HistoryView) -> str:
    thing, last = line.thing, line.telling[-1].last
    facts = [("release", thing.release), ("device", thing.device), *thing.about]
    facts += [("ran with", history_view.versions(last.versions)), ("run", last.run)]
    known = dict(fact for fact in facts if fact[1])
    return "## Where\n\n" + "\n".join(
        f"- {escaped(key)}: {code(short(value, 300))}" for key, value in known.items()
    )


def _since(line: Line, view: HistoryView) -> str:
    history: History = view.history
    first = view.days[line.since if line.since is not None else len(view.days) - 1]
    said = [f"It fails since the night of {first}."]
    if line.good is None:
        said.append(f"No night since {view.days[0]} has seen it ok: it may never have been.")
    else:
        then, now = line.good.last.versions, line.telling[-1].last.versions
        said.append(
            f"It was ok in the night of {view.days[line.good.night]}, "
            f"with {escaped(history_view.versions(then))}."
        )
        between = history_view.changed(then, now)
        told = "; ".join(escaped(one) for one in between)
        said.append(f"Changed between: {told or 'nothing that was recorded'}.")
    if line.state is State.BACK and line.first_failed is not None:
        said.append(f"It had failed before, first in the night of {view.days[line.first_failed]}.")
    nights = history_view.many(len(history.nights), "night")
    return "## Since when\n\n" + " ".join([*said, f"The window has {nights}."])


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
