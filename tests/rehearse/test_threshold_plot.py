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


def test_memory_that_does_not_fit_is_plotted_over_the_batch_and_the_pool() -> None:
    """A pool of 60 GB has 600 slots; at 512 requests the card of 100 GB is just full."""
    gigabyte = 10**9
    result = DeploymentResult(
        *("lite", "lite", "H200", 8),
        settings={"slots": 600},
        memory={"pools": 60 * gigabyte},
        card_memory=100 * gigabyte,
    )
    points = [(256, 0.9), (512, 1.0), (1024, 1.2), (4096, 1.7)]
    finding = RehearsalFinding("OutOfMemory", "decode", "", "does not fit", points=points)
    fitting = view.list_fitting_pools(result, finding)
    assert fitting == [(256, 700), (512, 600), (1024, 400)]  # no pool is small enough for 4,096
    own, *line = view.scale_fitting_pools(result, fitting)
    assert (own[0], line[0][1]) == (100, 0)
    assert own[1] < line[2][1]  # SGLang's pool is above the line: it does not fit beside 1,024
    assert view.list_fitting_pools(result, make_finding(FindingRank.NEAR)) == []
    run = RehearsalRun(id="r", started="2026-01-01T00:00:00+00:00", release="0.5.23")
    run.deployments = [result]
    result.findings = [finding]
    assert "700 slots at 256, 400 at 1,024" in render_page(run)


def test_an_overflow_is_plotted_over_the_batch_and_the_pool() -> None:
    """Beside half of the pool it begins at twice the size; SGLang's own batch is right of it."""
    finding = make_finding(FindingRank.REACHABLE)
    finding.pool_points = [(300, 2050), (600, 1025)]
    finding.pool_threshold = "./unfix rehearse lite -- --max-total-tokens 151"
    result = DeploymentResult("lite", "lite", "H200", 8, settings={"slots": 600})
    own, half, whole = view.scale_pool_points(result, finding)
    assert (own, half[1], whole[1]) == ((100, 0), 25, 0)
    assert half[0] == 2 * whole[0] == 100 * 2050 / 4096
    run = RehearsalRun(id="r", started="2026-01-01T00:00:00+00:00", release="0.5.23")
    run.deployments = [result]
    result.findings = [finding]
    page = render_page(run)
    assert "at 2,050 beside 300 slots, at 1,025 beside 600 slots" in page
    assert "in the whole batch from this pool on: <code>./unfix rehearse lite" in page
    finding.pool_points = []
    assert "Right of the line" not in render_page(run)
