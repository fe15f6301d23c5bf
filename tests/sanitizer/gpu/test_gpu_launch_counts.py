"""What a process under check counts on a GPU: refusals in graphs, dropped and further reports."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_gpu_shadows import run_checked_process

from harness.sanitizer.gpu.report_assembly import RECORDS_PER_SITE
from harness.sanitizer.watch.report_files import read_reports

pytestmark = pytest.mark.needs_cuda

START = """
import torch
from harness.sanitizer.watch import activation
activation.install_checks()
import triton, test_gpu_shadows as here
copy = here.known.copy
source = torch.arange(64, dtype=torch.int32, device="cuda")
target, graph = torch.zeros_like(source), torch.cuda.CUDAGraph()

def launch(shift):
    copy[(8,)](source, target, 64, shift, BLOCK=8)

def capture(shift):
    with torch.cuda.graph(graph):
        launch(shift)
"""


def test_a_graph_that_was_captured_unchecked_stays_on_record(tmp_path: Path) -> None:
    """Its capture is the process's first launch, when the reports have no memory yet."""
    code = "torch.cuda.synchronize()\ncapture(0)\nlaunch(0)\nlaunch(0)\ngraph.replay()\n"
    done = run_checked_process(
        f"{START}{code}torch.cuda.synchronize()", "bounds,overflow", tmp_path
    )
    checked = read_reports(tmp_path)
    assert (checked.launches, checked.checked_launches) == (3, 2), done.stderr
    [reason] = checked.refusals.values()
    assert reason == (
        "1 of 3 launches (1 captured in a graph, which replays it unchecked): "
        "there was no room for its reports"
    )


def test_a_process_all_of_whose_launches_are_refused_has_checked_none(tmp_path: Path) -> None:
    code = "capture(0)\nfor _ in range(5):\n    graph.replay()\n"
    done = run_checked_process(
        f"{START}{code}torch.cuda.synchronize()", "bounds,overflow", tmp_path
    )
    checked = read_reports(tmp_path)
    assert (checked.launches, checked.checked_launches) == (1, 0), done.stderr
    assert checked.failure.startswith("none of 1 launch was checked, so the check says nothing")


def test_reports_of_forgotten_launches_are_counted(tmp_path: Path) -> None:
    """The poller is held off until the table of launches has forgotten the bad one.

    Four of its lanes' reports were recorded."""
    code = """
from harness.sanitizer.gpu import process_reports
from harness.sanitizer.watch import checked_process
process_reports._MAX_REMEMBERED_LAUNCHES = 4
launch(0)
with checked_process._process._poller._lock:
    launch(1)
    for _ in range(8):
        launch(0)
    torch.cuda.synchronize()
"""
    done = run_checked_process(f"{START}{code}", "bounds", tmp_path)
    checked = read_reports(tmp_path)
    assert list(checked.dropped_reports.values()) == [RECORDS_PER_SITE], done.stderr
    assert checked.failure.endswith(f"{RECORDS_PER_SITE} reports of launches no longer known")


def test_further_reports_of_a_line_are_counted(tmp_path: Path) -> None:
    """Ten replays report alike, once for each thread that holds the bad lane; four are recorded."""
    code = "launch(0)\ncapture(1)\nfor _ in range(10):\n    graph.replay()\n"
    done = run_checked_process(f"{START}{code}torch.cuda.synchronize()", "bounds", tmp_path)
    checked = read_reports(tmp_path)
    assert len(checked.reports) == 1, done.stderr
    further = sum(one.further_reports for one in checked.kernels.values())
    assert further >= 10 - RECORDS_PER_SITE
    assert (further + RECORDS_PER_SITE) % 10 == 0
