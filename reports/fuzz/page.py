"""A fuzzing run as one HTML file: its failures, its tests, and the lines that ran."""

from __future__ import annotations

from harness.store.fuzz.values import FuzzRun
from reports.fuzz import view
from reports.shared import html_file

STYLES = ("shared/panel.css",)


def render_page(run: FuzzRun) -> str:
    releases = dict.fromkeys(f"SGLang {test.release}" for test in run.tests)
    toggled = [f"{direction} {name}" for name, direction in run.under]
    values = {"run": run, "view": view}
    return html_file.render_template(
        "fuzz/page.html.j2", values, [*releases, *toggled, run.device], [run.commit], styles=STYLES
    )
