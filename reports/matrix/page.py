"""A matrix run as one HTML file: ten thousand cells, of which only what failed is spread out."""

from __future__ import annotations

from typing import Any

from harness.store.matrix.values import MatrixRun, Outcome, RanCell
from reports.matrix import view
from reports.matrix.view import MARKS, MatrixView
from reports.shared import one_file
from reports.shared.one_file import data
from reports.shared.texts import line

STYLES = ("shared/page.css", "shared/runs.css", "shared/bars.css", "matrix/page.css")
SCRIPTS = ("shared/dom.js", "matrix/page.js")
LOGS = 2_000_000  # letters of logs on a page; what comes behind has only its replay line
AXES = 12  # with a chart of their own
VALUES = 12  # of one axis in its chart


def html(run: MatrixRun) -> str:
    seen = view.make(run)
    values = {
        "seen": seen,
        "run": run,
        "flaky": view.flaky(run.cells)[:VALUES],
        "view": view,
        "longest": max((cell.seconds for cell in seen.slowest), default=1.0) or 1.0,
        "axes": AXES,
        "values": VALUES,
        "index": data(index(seen)),
    }
    return one_file.rendered(
        "matrix/page.html.j2", values, styles=STYLES, scripts=SCRIPTS, filters={"short": line}
    )


def index(seen: MatrixView) -> dict[str, Any]:
    """All cells in few letters: values and outcomes are places in lists that are given once."""
    run = seen.run
    axes: dict[str, dict[str, int]] = {}
    marks = {word: place for place, word in enumerate(MARKS)}
    rows = [_row(cell, axes, marks) for cell in [*seen.failures, *_green(run)]]
    return {
        "families": [],
        "marks": {
            mark.word: {"glyph": mark.glyph, "tone": mark.tone, "good": mark.good}
            for mark in MARKS.values()
        },
        "words": list(MARKS),
        "axes": [
            {"name": line(axis, 40), "values": [line(value, 60) for value in values]}
            for axis, values in axes.items()
        ],
        "cells": rows,
        "told": _told(seen),
        "replay": line(f"unfix matrix run {run.file} --cell ", 400),
    }


def _green(run: MatrixRun) -> list[RanCell]:
    return [cell for cell in run.cells if cell.outcome is Outcome.GREEN]


def _row(cell: RanCell, axes: dict[str, dict[str, int]], marks: dict[str, int]) -> list[Any]:
    """Identity, outcome, seconds, losses, and pairs of axis and value."""
    pairs = []
    for axis, value in (*cell.values.items(), (view.WORK, cell.work)):
        known = axes.setdefault(axis, {})
        pairs += [list(axes).index(axis), known.setdefault(value, len(known))]
    return [
        *(line(cell.identity), marks[cell.word], round(cell.seconds, 2), cell.lost),
        pairs,
    ]


def _told(seen: MatrixView) -> list[dict[str, str]]:
    """What the failures say, in the order of their rows."""
    room = LOGS
    told = []
    for cell in seen.failures:
        log = view.tail(cell)
        room -= len(log)
        told.append(
            {
                "how": view.how(cell),
                "log": log if room > 0 else "",
                "replay": view.replay(seen.run, cell),
                "command": view.command(cell),
                "inside": view.inside(cell),
                "where": line(cell.attempts[-1].where) if cell.attempts else "",
                "why": line(cell.why, 200),
            }
        )
    return told
