"""The page draws how a finding comes to its limit, by the setting that brings it there."""

from __future__ import annotations

import re

from harness.store.rehearse.values import (
    DeploymentResult,
    FindingRank,
    RehearsalFinding,
    RehearsalRun,
)
from reports.rehearse import view
from reports.rehearse.page import render_page


def make_finding(rank: FindingRank) -> RehearsalFinding:
    return RehearsalFinding(
        *("IntegerOverflow", "decode", "m:walk", "wraps", "a.py", 3, "row * stride"),
        rank=rank,
        threshold="./unfix rehearse lite -- --max-running-requests 1025",
        points=[(1024, 0.999), (1025, 1.0), (2048, 2.0), (4096, 9.0)],
    )


def test_a_plot_crosses_its_limit_at_the_threshold_and_stays_in_its_frame() -> None:
    points = view.list_plot_points(make_finding(FindingRank.REACHABLE))
    below, at, double, most = points
    assert below[1] > at[1] == 25 > double[1] == most[1] == 0
    assert (at[0], most[0]) == (100 * 1025 / 4096, 100)


def test_the_page_has_a_plot_and_says_how_the_threshold_is_known() -> None:
    run = RehearsalRun(id="r", started="2026-01-01T00:00:00+00:00", release="0.5.23")
    run.deployments = [DeploymentResult("lite", "lite", "H200", 8)]
    run.deployments[0].findings = [make_finding(FindingRank.REACHABLE)]
    page = render_page(run)
    assert re.search(r'<polyline points="25\.0,25\.02? ', page)
    assert "<code>--max-running-requests</code>, from 1,024 to 4,096" in page
    assert "<p>begins at <code>" in page
    run.deployments[0].findings = [make_finding(FindingRank.NEAR)]
    assert "by proportion it would begin at" in render_page(run)
