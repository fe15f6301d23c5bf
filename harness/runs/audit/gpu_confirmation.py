"""Runs the findings of an audit on this machine's GPU, in real memory.

Each finding has two launches: the largest passing size, and the threshold. Invariant: a GPU
confirms a finding only if the launch at the threshold shows it. Example: `row * 4096` in int32 is
launched with 524,288 rows, which pass, and with 524,289, whose last row begins at 2**31. If both
pass, a finding by arithmetic alone becomes a reason why its kernel is unknown.
"""

from __future__ import annotations

import importlib.util
import json
import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from harness.core import machine, paths
from harness.core.errors import NotReadyError
from harness.core.wording import format_count
from harness.patching.child_environment import SINGLE_THREAD, ChildEnvironment
from harness.runs.audit.findings import (
    CONFIRMED,
    AuditFinding,
    KernelAudit,
    judge_kernel,
    split_findings,
)
from harness.runs.audit.release_audit import ReleaseAudit
from harness.workers.answering_process import get_log, iterate_answers

FindingId = tuple[str, ...]


def confirm_on_gpu(
    audit: ReleaseAudit,
    location: Path,
    jobs: int,
    seconds: float,
    report: Callable[[str], None],
) -> ReleaseAudit:
    machine.require_device("cuda")
    if importlib.util.find_spec("torch") is None:
        raise NotReadyError(
            f"{sys.executable} has no torch: run `python -m harness audit …` by a Python that has "
            "torch and Triton for this GPU"
        )
    name = machine.describe_gpus().split(",")[0]
    pending = [each for each in audit.findings if each.trials]
    report(f"running {format_count(len(pending), 'finding')} on one {name}")
    results: dict[FindingId, str] = {}
    for index, result in _iterate_results(pending, location, jobs, seconds):
        results[_make_id(pending[index])] = result
        if len(results) % 50 == 0:
            report(f"{len(results)} of {len(pending)} findings")

    def apply_result(finding: AuditFinding) -> AuditFinding:
        result = results.get(_make_id(finding), "its launch was not kept")
        if result.startswith(CONFIRMED):
            on_gpu = result.replace(CONFIRMED, name, 1)
            return replace(finding, confirmed=f"{CONFIRMED} on an {name}", on_gpu=on_gpu)
        return replace(finding, on_gpu=f"{name}: {result}")

    def judge(kernel: KernelAudit) -> KernelAudit:
        if not kernel.findings:
            return kernel
        findings, reasons = split_findings(map(apply_result, kernel.findings), kernel.reasons)
        verdict = judge_kernel(findings, reasons)
        return replace(kernel, findings=findings, reasons=reasons, verdict=verdict)

    return replace(audit, kernels=tuple(map(judge, audit.kernels)), gpu=machine.describe_machine())


def _make_id(finding: AuditFinding) -> FindingId:
    return finding.kind, finding.file, str(finding.line), finding.text, finding.kernel


def _iterate_results(
    findings: list[AuditFinding], location: Path, jobs: int, seconds: float
) -> Iterator[tuple[int, str]]:
    """Iterate the results of the findings' launches, each with its finding's index."""
    order = sorted(enumerate(findings), key=lambda pair: pair[1].nearness)
    request = {"findings": order, "location": location, "jobs": jobs, "seconds": seconds}
    count = 0
    environment = ChildEnvironment(SINGLE_THREAD)
    environment.add_python_path(paths.project_folder())
    worker = sys.executable, "harness.runs.audit.gpu_worker"
    for line in iterate_answers(*worker, pickle.dumps(request), environment):
        count += 1
        index, result = json.loads(line)
        yield index, result
    if count != len(findings):
        raise NotReadyError(
            f"the GPU's run was cut short at {count} of {len(findings)} findings: see {get_log()}"
        )
