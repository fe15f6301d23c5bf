"""Runs as one HTML file that needs nothing else: no network, no fonts, no folder beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.releases import managed
from harness.store.prove import recorded
from harness.store.prove.values import Cell, Run, Side
from reports.prove import life, terminal, view
from reports.prove.view import Box, Row, View
from reports.shared import one_file, texts
from reports.shared.one_file import data

SCRIPTS = ("shared/dom.js", *(f"prove/{name}.js" for name in ("matrix", "panel", "life", "page")))
STYLES = ("shared/page.css", "shared/panel.css")
SLOWEST = 15


def html(runs: Run | Sequence[Run]) -> str:
    """The page. What a box holds lies in it as JSON of its own and is read when somebody asks."""
    seen = view.make(runs)
    details: list[dict[str, Any]] = []
    index = table(seen, details)
    values = {
        "seen": seen,
        "where": terminal.on_releases(seen),
        "counts": chips(seen),
        "marks": texts.MARKS,
        "statement": statement(seen),
        "index": data(index),
        "details": [data(one) for one in details],
    }
    return one_file.rendered("prove/page.html.j2", values, styles=STYLES, scripts=SCRIPTS)


def statement(seen: View) -> str:
    """What the run comes to, in one sentence."""
    counts = seen.run.counts
    if seen.kind == "lifecycle":
        differing = sum(len(row.life.contradictions) for row in seen.rows)
        if seen.green:
            return "Running agrees with the sources on every release it reached."
        if differing:
            places = "one place" if differing == 1 else f"{differing} places"
            return f"Running contradicts the sources in {places}."
        return "Some of it could not be told by running."
    if seen.green:
        n = counts.get("proven", 0)
        return f"Every guard that applies notices its bug: {n} of {n} cells are proven."
    bad = len(seen.not_good)
    if bad:
        cells = "cell is" if bad == 1 else "cells are"
        return f"{bad} {cells} not proven."
    return "Nothing failed, and yet this run proves less than it should."


def chips(seen: View) -> list[tuple[texts.Mark, int]]:
    counts = seen.run.counts
    return [(mark, counts[word]) for word, mark in texts.MARKS.items() if counts.get(word)]


def table(seen: View, details: list[dict[str, Any]]) -> dict[str, Any]:
    """All that is on the page before a box is opened; the boxes' contents go to `details`."""
    known = [release.name for release in managed.all_releases()]
    proven = recorded.proofs(known)
    return {
        "kind": seen.kind,
        "single": seen.single,
        "marks": {
            mark.word: {
                "glyph": mark.glyph.strip(),
                "tone": mark.tone,
                "meaning": mark.meaning,
                "good": mark.good,
            }
            for mark in texts.MARKS.values()
        },
        "columns": [
            {
                "release": column.release,
                "device": column.device,
                "label": column.label,
                "seconds": column.on.seconds,
                "start": column.on.seconds_to_start,
            }
            for column in seen.columns
        ],
        "releases": seen.releases,
        "families": [
            {
                "name": texts.visible(family.name),
                "toggles": [
                    toggle(row, details)
                    | {"proven": [one.told(known) for one in proven.get(row.toggle.id, ())]}
                    for row in family.rows
                ],
            }
            for family in seen.families
        ],
        "slowest": [
            {
                "guard": texts.visible(slow.guard),
                "seconds": slow.seconds,
                "overhead": slow.overhead,
                "cells": slow.cells,
            }
            for slow in seen.slowest[:SLOWEST]
        ],
    }


def toggle(row: Row, details: list[dict[str, Any]]) -> dict[str, Any]:
    facts = row.toggle
    return {
        "id": facts.id,
        "title": texts.visible(facts.title),
        "family": texts.visible(facts.family),
        "symptom": texts.visible(facts.symptom),
        "why": texts.visible(facts.why),
        "upstream": facts.upstream,
        "boxes": [small(box, details) for box in row.boxes],
        "life": {
            "span": row.life.span,
            "ran": row.life.ran,
            "on": [
                {
                    "release": lived.release,
                    "source": lived.source,
                    "found": lived.found,
                    "differs": life.in_words(lived) if lived.differs else "",
                }
                for lived in row.life.on
            ],
        },
    }


def small(box: Box, details: list[dict[str, Any]]) -> dict[str, Any]:
    """A box as the matrix needs it, with the number of the details it opens."""
    patch = box.column.on.patches.get(box.toggle, "")
    details.append(
        {
            "patch": texts.visible(patch),
            "cells": [whole(cell) for cell in box.cells],
            "asis": [whole(cell) for cell in box.as_is],
        }
    )
    return {
        "mark": box.mark,
        "state": box.state,
        "counts": box.counts,
        "seconds": box.seconds,
        "detail": len(details) - 1,
        "guards": [
            {
                "name": texts.visible(texts.short_guard(cell.guard)),
                "id": texts.visible(cell.guard),
                "mark": texts.word_of(cell.verdict),
                "seconds": cell.seconds,
                "sides": [[s.side, s.outcome.value, s.reach] for s in view.sides(cell)],
            }
            for cell in box.cells
        ],
    }


def whole(cell: Cell) -> dict[str, Any]:
    return {
        "guard": texts.visible(cell.guard),
        "mark": texts.word_of(cell.verdict),
        "state": cell.state,
        "why": texts.visible(view.reason(cell)),
        "sides": [one(cell, side) for side in view.sides(cell)],
    }


def one(cell: Cell, side: Side) -> dict[str, Any]:
    which = cell.state if side.side == "as is" else side.side
    return {
        "side": side.side,
        "means": texts.SIDES.get(side.side, side.side),
        "outcome": side.outcome.value,
        "right": view.right(cell, side),
        "wanted": {"fixed": "passed", "buggy": "failed"}.get(which, ""),
        "seconds": side.seconds,
        "overhead": side.overhead,
        "reach": side.reach,
        "left": side.left,
        "again": view.repeated(side),
        "headline": texts.cut(side.headline),
        "example": texts.cut("\n".join(side.example)),
        "detail": texts.cut(side.detail),
        "output": texts.cut(side.output),
        "replay": texts.visible(side.replay),
    }
