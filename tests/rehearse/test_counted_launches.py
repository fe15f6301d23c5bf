"""A report says how many calls of layers ran: the launches of the others are counted alone."""

from __future__ import annotations

import pytest
from rich.console import Console

from harness.core.outcomes import RunStatus
from harness.store.rehearse.values import (
    DeploymentResult,
    RehearsalRun,
    RehearsedLaunch,
    RehearsedPhase,
    UncheckedCause,
    UncheckedOperator,
)
from reports.rehearse import terminal, view
from reports.rehearse.markdown import render_markdown
from reports.rehearse.page import render_page

COUNTED = (
    "1,220 launches of 1 kernels; 142 of 1,244 layers were run; the others launch the "
    "same kernels with the same shapes (`--all-layers` runs them, too); "
)


def make_run(passed: int) -> RehearsalRun:
    launch = RehearsedLaunch("m:walk", "decode", (8, 1, 1), {}, count=1220)
    phases = [
        RehearsedPhase("decode", "2 requests", layers=1122, passed_layers=passed),
        RehearsedPhase("long decode", "1 request", layers=122, passed_layers=passed and 108),
    ]
    one = DeploymentResult("lite", "m", "H200", 8, phases=phases, launches=[launch])
    run = RehearsalRun(
        id="r", started="2026-01-01T00:00:00+00:00", release="0.5.23", status=RunStatus.FINISHED
    )
    run.deployments = [one]
    return run


@pytest.mark.parametrize(("passed", "is_said"), [(994, True), (0, False)])
def test_each_report_tells_launches_from_those_that_are_counted(passed: int, is_said: bool) -> None:
    run = make_run(passed)
    console = Console(record=True, width=120)
    terminal.print_run(run, console)
    page = render_page(run)
    reports = (console.export_text(), render_markdown(run), page)
    assert [COUNTED in report for report in reports] == [is_said] * len(reports)
    assert ("14 of 122 layers were run" in page) is is_said
    assert ("1,220 launches of 1 kernels, made or counted, " in page) is is_said


def test_each_report_lists_what_is_not_checked_with_its_share_and_its_reason() -> None:
    run = make_run(0)
    [deployment] = run.deployments
    deployment.launches[0].count = 100
    refused = [
        RehearsedLaunch(f"sglang/{file}.cuh:copy", "chunk", (1, 1, 1), {}, 10, refusal="mma.sync")
        for file in ("norm", "gemm")
    ]
    deployment.launches += refused
    deployment.operators = [
        UncheckedOperator("jit:kvcache.store_cache", 60, cause=UncheckedCause.NO_TOOLKIT),
        UncheckedOperator("sgl_kernel.rmsnorm", 20, cause=UncheckedCause.NO_SOURCE),
    ]
    assert [(call.name, call.calls) for call in run.unchecked_calls] == [
        ("jit:kvcache.store_cache", 60),
        ("sgl_kernel.rmsnorm", 20),
        ("sglang/norm.cuh:copy", 10),
        ("sglang/gemm.cuh:copy", 10),
    ]
    assert run.counts["not checked"] == 100
    console = Console(record=True, width=160)
    terminal.print_run(run, console)
    share = "50% of all launches not checked, 30% for want of the CUDA toolkit"
    for report in (console.export_text(), render_markdown(run), render_page(run)):
        assert share in report
        for words in ("30.0%", "cache", "releases add cuda-toolkit", "10.0%", "mma.sync"):
            assert words in report
        assert "nothing here builds the package sgl" in report.replace("\\", "")
        assert ("norm.cuh:copy" in report, "gemm.cuh:copy" in report) == (True, True)


def test_an_operator_of_an_older_record_says_what_the_record_says() -> None:
    operators = UncheckedOperator("jit:rope", 2, "no nvcc"), UncheckedOperator("jit:rope", 2)
    assert list(map(view.describe_cause, operators)) == ["no nvcc", "an operator of CUDA code"]
