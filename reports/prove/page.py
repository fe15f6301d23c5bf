"""Runs as one HTML file that needs nothing else: no network, no fonts, no folder beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.releases import managed_releases
from harness.store.prove import recorded_proofs
from harness.store.prove.values import CellResult, ProveRun, SideResult
from reports.prove import bug_lifetime, terminal, view
from reports.prove.view import MatrixBox, ProofView, ToggleRow
from reports.shared import formatting, html_file
from reports.shared.html_file import embed_json

SCRIPTS = ("shared/dom.js", *(f"prove/{name}.js" for name in ("matrix", "panel", "life", "page")))
STYLES = ("shared/page.css", "shared/panel.css")
MAX_SLOWEST = 15


def render_page(runs: ProveRun | Sequence[ProveRun]) -> str:
    """The page. What a box holds lies in it as JSON of its own and is read when somebody asks."""
    seen = view.make_view(runs)
    details: list[dict[str, Any]] = []
    index = make_index(seen, details)
    values = {
        "seen": seen,
        "where": terminal.describe_releases(seen),
        "counts": list_mark_counts(seen),
        "marks": formatting.MARKS,
        "statement": describe_run(seen),
        "index": embed_json(index),
        "details": [embed_json(one) for one in details],
    }
    return html_file.render_template("prove/page.html.j2", values, styles=STYLES, scripts=SCRIPTS)


def describe_run(proof_view: ProofView) -> str:
    """What the run comes to, in one sentence."""
    counts = proof_view.run.counts
    if proof_view.kind == "lifecycle":
        differing = sum(len(row.lifetime.contradictions) for row in proof_view.rows)
        if proof_view.green:
            return "Running agrees with the sources on every release it reached."
        if differing:
            places = "one place" if differing == 1 else f"{differing} places"
            return f"Running contradicts the sources in {places}."
        return "Some of it could not be told by running."
    if proof_view.green:
        n = counts.get("proven", 0)
        return f"Every guard that applies notices its bug: {n} of {n} cells are proven."
    bad = len(proof_view.failed_cells)
    if bad:
        cells = "cell is" if bad == 1 else "cells are"
        return f"{bad} {cells} not proven."
    return "Nothing failed, and yet this run proves less than it should."


def list_mark_counts(proof_view: ProofView) -> list[tuple[formatting.ReportMark, int]]:
    counts = proof_view.run.counts
    return [(mark, counts[word]) for word, mark in formatting.MARKS.items() if counts.get(word)]


def make_index(proof_view: ProofView, details: list[dict[str, Any]]) -> dict[str, Any]:
    """All that is on the page before a box is opened; the boxes' contents go to `details`."""
    known = [release.name for release in managed_releases.list_releases()]
    proven = recorded_proofs.load_proofs(known)
    return {
        "kind": proof_view.kind,
        "single": proof_view.has_single_column,
        "marks": {
            mark.word: {
                "glyph": mark.glyph.strip(),
                "tone": mark.tone,
                "meaning": mark.meaning,
                "good": mark.good,
            }
            for mark in formatting.MARKS.values()
        },
        "columns": [
            {
                "release": column.release,
                "device": column.device,
                "label": column.label,
                "seconds": column.release_run.seconds,
                "start": column.release_run.seconds_to_start,
            }
            for column in proof_view.columns
        ],
        "releases": proof_view.releases,
        "families": [
            {
                "name": formatting.make_visible(family.name),
                "toggles": [
                    toggle_to_json(row, details)
                    | {"proven": [one.describe(known) for one in proven.get(row.toggle.id, ())]}
                    for row in family.rows
                ],
            }
            for family in proof_view.families
        ],
        "slowest": [
            {
                "guard": formatting.make_visible(slow.guard),
                "seconds": slow.seconds,
                "overhead": slow.overhead,
                "cells": slow.cell_count,
            }
            for slow in proof_view.slowest[:MAX_SLOWEST]
        ],
    }


def toggle_to_json(row: ToggleRow, details: list[dict[str, Any]]) -> dict[str, Any]:
    facts = row.toggle
    return {
        "id": facts.id,
        "title": formatting.make_visible(facts.title),
        "family": formatting.make_visible(facts.family),
        "symptom": formatting.make_visible(facts.symptom),
        "why": formatting.make_visible(facts.why),
        "upstream": facts.upstream,
        "boxes": [box_to_json(box, details) for box in row.boxes],
        "life": {
            "span": row.lifetime.span,
            "ran": row.lifetime.was_observed,
            "on": [
                {
                    "release": lived.release,
                    "source": lived.source_state,
                    "found": lived.observed_state,
                    "differs": bug_lifetime.describe_contradiction(lived)
                    if lived.contradicting_guards
                    else "",
                }
                for lived in row.lifetime.releases
            ],
        },
    }


def box_to_json(box: MatrixBox, details: list[dict[str, Any]]) -> dict[str, Any]:
    """A box as the matrix needs it, with the number of the details it opens."""
    patch = box.column.release_run.patches.get(box.toggle, "")
    details.append(
        {
            "patch": formatting.make_visible(patch),
            "cells": [cell_to_json(cell) for cell in box.cells],
            "asis": [cell_to_json(cell) for cell in box.as_is_cells],
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
                "name": formatting.make_visible(formatting.get_test_name(cell.guard)),
                "id": formatting.make_visible(cell.guard),
                "mark": formatting.get_verdict_word(cell.verdict),
                "seconds": cell.seconds,
                "sides": [[s.side, s.outcome.value, s.reach] for s in view.sort_sides(cell)],
            }
            for cell in box.cells
        ],
    }


def cell_to_json(cell: CellResult) -> dict[str, Any]:
    return {
        "guard": formatting.make_visible(cell.guard),
        "mark": formatting.get_verdict_word(cell.verdict),
        "state": cell.state,
        "why": formatting.make_visible(view.describe_reason(cell)),
        "sides": [side_to_json(cell, side) for side in view.sort_sides(cell)],
    }


def side_to_json(cell: CellResult, side: SideResult) -> dict[str, Any]:
    which = cell.state if side.side == "as is" else side.side
    return {
        "side": side.side,
        "means": formatting.SIDE_PHRASES.get(side.side, side.side),
        "outcome": side.outcome.value,
        "right": view.is_side_expected(cell, side),
        "wanted": {"fixed": "passed", "buggy": "failed"}.get(which, ""),
        "seconds": side.seconds,
        "overhead": side.overhead,
        "reach": side.reach,
        "left": side.left,
        "again": view.describe_repeats(side),
        "headline": formatting.truncate_start(side.headline),
        "example": formatting.truncate_start("\n".join(side.example)),
        "detail": formatting.truncate_start(side.detail),
        "output": formatting.truncate_start(side.output),
        "replay": formatting.make_visible(side.replay),
    }
