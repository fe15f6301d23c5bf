"""A proof as one HTML file: the matrix, the lifetimes of the bugs, the details of each box."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.core.wording import format_count
from harness.releases import managed_releases
from harness.store.prove import recorded_proofs
from harness.store.prove.values import CellResult, ProveRun, SideResult
from reports.prove import bug_lifetime, marks, view
from reports.prove.marks import MARKS
from reports.prove.view import MatrixBox, ProofView, ToggleRow
from reports.shared import html_file
from reports.shared.formatting import make_visible, summarize_toggles, truncate_start
from reports.shared.html_file import embed_json

SCRIPTS = ("shared/dom.js", *(f"prove/{name}.js" for name in ("matrix", "panel", "life", "page")))
STYLES = ("shared/panel.css",)
MAX_SLOWEST = 15


def render_page(runs: ProveRun | Sequence[ProveRun]) -> str:
    """Render the page; each box's details are separate JSON, parsed when the box is opened."""
    proof_view = view.make_view(runs)
    details: list[dict[str, Any]] = []
    index = make_index(proof_view, details)
    counts = proof_view.run.counts
    values = {
        "report": proof_view,
        "counts": [(mark, counts[word]) for word, mark in MARKS.items() if counts.get(word)],
        "statement": describe_run(proof_view),
        "index": embed_json(index),
        "details": [embed_json(detail) for detail in details],
    }
    return html_file.render_template(
        "prove/page.html.j2",
        values,
        [
            f"SGLang {proof_view.release_summary}",
            summarize_toggles([toggle.id for toggle in proof_view.run.toggles]),
            ", ".join(proof_view.devices),
            *(column.facts.machine.get("sources", "") for column in proof_view.columns),
        ],
        [run.settings.get("commit", "") for run in proof_view.runs],
        styles=STYLES,
        scripts=SCRIPTS,
    )


def describe_run(proof_view: ProofView) -> str:
    """Describe the outcome of the run in one sentence."""
    if proof_view.kind == "lifecycle":
        differing = sum(len(row.lifetime.contradictions) for row in proof_view.rows)
        if proof_view.green:
            return "Running agrees with the sources on every release it reached."
        if differing:
            return f"Running contradicts the sources in {format_count(differing, 'place')}."
        return "Running did not settle all of it."
    if proof_view.green:
        proven = proof_view.run.counts.get("proven", 0)
        return f"Every guard that applies notices its bug: {format_count(proven, 'cell')} proven."
    failed = len(proof_view.failed_cells)
    if failed:
        return f"{format_count(failed, 'cell')} {'is' if failed == 1 else 'are'} not proven."
    return "Nothing failed, and yet this run proves less than it should."


def make_index(proof_view: ProofView, details: list[dict[str, Any]]) -> dict[str, Any]:
    """Make the page's data before a box is opened; the boxes' details go to `details`."""
    known = [release.name for release in managed_releases.list_releases()]
    proofs = recorded_proofs.load_proofs(known)
    return {
        "kind": proof_view.kind,
        "single": proof_view.has_single_column,
        "marks": html_file.marks_to_json(MARKS.values()),
        "columns": [
            {
                "release": column.release,
                "device": column.device,
                "label": column.label,
                "seconds": column.facts.seconds,
                "start": column.facts.seconds_to_start,
            }
            for column in proof_view.columns
        ],
        "releases": proof_view.releases,
        "families": [
            {
                "name": make_visible(family.name),
                "toggles": [
                    toggle_to_json(row, details)
                    | {"proven": [proof.describe(known) for proof in proofs.get(row.toggle.id, ())]}
                    for row in family.rows
                ],
            }
            for family in proof_view.families
        ],
        "slowest": [
            {
                "guard": make_visible(timing.guard),
                "seconds": timing.seconds,
                "overhead": timing.overhead,
                "cells": timing.cell_count,
            }
            for timing in proof_view.slowest[:MAX_SLOWEST]
        ],
    }


def toggle_to_json(row: ToggleRow, details: list[dict[str, Any]]) -> dict[str, Any]:
    facts, lifetime = row.toggle, row.lifetime
    texts = ("title", "family", "symptom", "why")
    return {
        "id": facts.id,
        **{name: make_visible(getattr(facts, name)) for name in texts},
        "upstream": facts.upstream,
        "evaluations": row.evaluations,
        "boxes": [box_to_json(box, details) for box in row.boxes],
        "life": {
            "span": lifetime.span,
            "ran": lifetime.was_observed,
            "on": [
                {
                    "release": bug.release,
                    "source": bug.source_state,
                    "found": bug.observed_state,
                    "differs": bug_lifetime.describe_contradiction(bug)
                    if bug.contradicting_guards
                    else "",
                }
                for bug in lifetime.releases
            ],
        },
    }


def box_to_json(box: MatrixBox, details: list[dict[str, Any]]) -> dict[str, Any]:
    """Convert a box to JSON for the matrix, with the index of its details."""
    patch = box.column.facts.patches.get(box.toggle, "")
    details.append(
        {
            "patch": make_visible(patch),
            "cells": [cell_to_json(cell) for cell in box.cells],
            "asis": [cell_to_json(cell) for cell in box.as_is_cells],
        }
    )
    return {
        "mark": box.mark,
        "state": box.state,
        "counts": box.counts,
        "seconds": box.seconds,
        "expected": make_visible(box.expected_reason),
        "detail": len(details) - 1,
        "guards": [
            {
                "name": make_visible(marks.get_test_name(cell.guard)),
                "id": make_visible(cell.guard),
                "mark": marks.get_verdict_word(cell.verdict),
                "seconds": cell.seconds,
                "sides": [[s.side, s.outcome.value, s.reach] for s in view.sort_sides(cell)],
            }
            for cell in box.cells
        ],
    }


def cell_to_json(cell: CellResult) -> dict[str, Any]:
    return {
        "guard": make_visible(cell.guard),
        "mark": marks.get_verdict_word(cell.verdict),
        "state": cell.state,
        "moment": cell.moment and f", toggled {cell.moment}",
        "why": make_visible(view.describe_reason(cell)),
        "sides": [side_to_json(cell, side) for side in view.sort_sides(cell)],
    }


def side_to_json(cell: CellResult, side: SideResult) -> dict[str, Any]:
    state = cell.state if side.side == "as is" else side.side
    return {
        "side": side.side,
        "means": marks.SIDE_PHRASES.get(side.side, side.side),
        "outcome": side.outcome.value,
        "right": view.is_side_expected(cell, side),
        "wanted": {"fixed": "passed", "buggy": "failed"}.get(state, ""),
        **{name: getattr(side, name) for name in ("seconds", "overhead", "reach", "left")},
        "again": view.describe_repeats(side),
        **{name: truncate_start(getattr(side, name)) for name in ("headline", "detail", "output")},
        "example": truncate_start("\n".join(side.example)),
        "replay": make_visible(side.replay),
    }
