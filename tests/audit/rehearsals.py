"""A kernel of three lines, and rehearsals that reach one of them and come near to another."""

from __future__ import annotations

from harness.core.outcomes import RunStatus
from harness.runs.audit.release_audit import ReleaseAudit
from harness.store.rehearse.values import (
    INT32_LIMIT,
    DeploymentResult,
    FindingRank,
    RehearsalFinding,
    RehearsalRun,
)

SOURCE = """
def walk(x, stride):
    row = tl.program_id(0)
    tl.load(x + row * stride)
    tl.store(x + row * stride + 1)
    tl.load(x + row * stride + 2)
"""
REACHED, NEAR, POSSIBLE = (line.strip() for line in SOURCE.splitlines()[3:6])
ALL_KEYS = {("overflow", "walk", line) for line in (REACHED, NEAR, POSSIBLE)}
COMMAND = "./unfix rehearse lite -- --context-length 9"


def make_finding(
    text: str,
    rank: FindingRank,
    *,
    extent: int = 0,
    line: int = 0,
    threshold: str = COMMAND,
    kernel: str = "m:walk",
    kind: str = "IntegerOverflow",
) -> RehearsalFinding:
    return RehearsalFinding(
        *(kind, "decode", kernel, f"says {text}", "srt/layers/walk.py"),
        *(line, text),
        rank=rank,
        threshold=threshold,
        extent=extent,
    )


def make_run(*findings: RehearsalFinding, release: str = "0.5.23") -> RehearsalRun:
    run = RehearsalRun(id="r", started="", release=release, status=RunStatus.FINISHED)
    run.deployments = [
        DeploymentResult("lite", "deepseek-v2-lite", "H200", 8, findings=list(findings))
    ]
    return run


RUN = make_run(
    make_finding(NEAR, FindingRank.NEAR, extent=INT32_LIMIT // 2, line=5),
    make_finding(REACHED, FindingRank.REACHABLE, line=4),
)


def list_headline(audit: ReleaseAudit) -> list[tuple[str, int]]:
    return [(str(one.rank), one.line) for one in audit.headline]
