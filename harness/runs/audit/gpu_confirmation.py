"""The findings of an audit run again on a GPU; and an audit read from its record."""

from __future__ import annotations

import gzip
import importlib.util
import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.core import machine, paths
from harness.core.errors import NotReadyError, UnfixError
from harness.patching.child_environment import SINGLE_THREAD, ChildEnvironment
from harness.runs.audit.findings import (
    CONFIRMED,
    NO_TIME,
    AuditFinding,
    FindingKind,
    KernelAudit,
    KernelVerdict,
    LaunchArgument,
    ModelThreshold,
    TrialLaunch,
    judge_kernel,
    split_findings,
)
from harness.runs.audit.release_audit import ReleaseAudit


def read_record(file: Path) -> ReleaseAudit:
    """What `unfix audit --record` wrote."""
    try:
        content = file.read_bytes()
        data = json.loads(gzip.decompress(content) if file.suffix == ".gz" else content)
        kernels = tuple(map(_parse_kernel, data["kernels"]))
        return ReleaseAudit(data["release"], kernels, data["limits"], len(kernels), data["seconds"])
    except OSError as error:
        raise UnfixError(f"{file} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UnfixError(f"{file} is no record that this `unfix audit --record` wrote") from error


def _parse_kernel(data: dict[str, Any]) -> KernelAudit:
    findings = tuple(map(_parse_finding, data["findings"]))
    more = {"verdict": KernelVerdict(data["verdict"]), "reasons": tuple(data["reasons"])}
    return KernelAudit(**data | more | {"findings": findings})


def _parse_finding(data: dict[str, Any]) -> AuditFinding:
    more = {
        "kind": FindingKind(data["kind"]),
        "constants": tuple(data["constants"]),
        "reaches": tuple(ModelThreshold(**one) for one in data["reaches"]),
        "trials": tuple(map(_parse_trial, data["trials"])),
    }
    return AuditFinding(**data | more)


def _parse_trial(data: dict[str, Any]) -> TrialLaunch:
    arguments = (
        LaunchArgument(**one | {"holds": tuple(one["holds"]) if one["holds"] else None})
        for one in data["arguments"]
    )
    return TrialLaunch(tuple(data["grid"]), tuple(data["program"]), tuple(arguments))


def confirm_on_gpu(
    audit: ReleaseAudit,
    location: Path,
    jobs: int,
    seconds: float,
    report: Callable[[str], None],
    earlier_audit: ReleaseAudit | None = None,
) -> ReleaseAudit:
    """With what launches on this machine's GPU showed of each finding.

    `known`: launches that an earlier run on such a GPU made are not made again.
    """
    machine.require_device("cuda")
    if importlib.util.find_spec("torch") is None:
        raise NotReadyError(
            f"{sys.executable} has no torch: run `python -m harness audit …` by a Python that has "
            "torch and Triton for this GPU"
        )
    name = machine.describe_gpus().split(",")[0]
    before = _find_known_results(earlier_audit, audit, name) if earlier_audit is not None else {}
    asked = [one for one in audit.findings if one.trials and _make_launch_key(one) not in before]
    report(f"running {len(asked)} findings on one {name}")
    told: dict[tuple[str, ...], str] = {}
    for number, words in _iterate_answers(asked, location, jobs, seconds):
        told[_make_launch_key(asked[number])] = words
        if len(told) % 50 == 0:
            report(f"{len(told)} of {len(asked)} findings")

    def seen(one: AuditFinding) -> AuditFinding:
        if earlier := before.get(_make_launch_key(one)):
            shown = earlier.confirmed if earlier.confirmed.endswith(name) else one.confirmed
            return replace(one, confirmed=shown, on_gpu=earlier.on_gpu)
        words = told.get(_make_launch_key(one), "its launch was not kept")
        if words.startswith(CONFIRMED):
            on_gpu = words.replace(CONFIRMED, name, 1)
            return replace(one, confirmed=f"{CONFIRMED} on an {name}", on_gpu=on_gpu)
        return replace(one, on_gpu=f"{name}: {words}")

    def shown(kernel: KernelAudit) -> KernelAudit:
        if not kernel.findings:
            return kernel
        findings, reasons = split_findings(map(seen, kernel.findings), kernel.reasons)
        verdict = judge_kernel(findings, reasons)
        return replace(kernel, findings=findings, reasons=reasons, verdict=verdict)

    return replace(audit, kernels=tuple(map(shown, audit.kernels)), gpu=machine.describe_machine())


def _find_known_results(
    earlier_audit: ReleaseAudit, audit: ReleaseAudit, gpu_name: str
) -> dict[tuple[str, ...], AuditFinding]:
    """Of which findings the launches were made on such a GPU, the same ones; less what it had no
    time for."""
    if earlier_audit.release != audit.release:
        raise UnfixError(f"--known is of {earlier_audit.release}, and --again of {audit.release}")
    launches = {_make_launch_key(one): one.trials for one in audit.findings}
    return {
        where: one
        for one in earlier_audit.findings
        if one.on_gpu.startswith(gpu_name)
        and not one.on_gpu.endswith(NO_TIME)
        and launches.get(where := _make_launch_key(one)) == one.trials
    }


def _make_launch_key(finding: AuditFinding) -> tuple[str, ...]:
    return finding.kind, finding.file, str(finding.line), finding.text, finding.kernel


def _iterate_answers(
    findings: list[AuditFinding], location: Path, jobs: int, seconds: float
) -> Iterator[tuple[int, str]]:
    """By number, as they come."""
    order = sorted(enumerate(findings), key=lambda one: one[1].nearness)
    given = {"findings": order, "place": location, "jobs": jobs, "seconds": seconds}
    environment = ChildEnvironment(SINGLE_THREAD)
    environment.add_python_path(paths.project_folder())
    log = paths.state_folder() / "audit.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    many = 0
    with log.open("wb") as noise:  # whatever Triton prints
        process = subprocess.Popen(
            [sys.executable, "-m", "harness.runs.audit.gpu_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=noise,
            env=environment,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(pickle.dumps(given))
    process.stdin.close()
    with process.stdout as answers:
        for line in answers:
            number, words = json.loads(line)
            many += 1
            yield number, words
    process.wait()
    if many != len(findings):
        raise NotReadyError(
            f"the GPU's run was cut short at {many} of {len(findings)} findings: see {log}"
        )
