"""An audit as JSON, printed by `--json`, written by `--record`, read by `--again`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from harness.core.errors import UnfixError
from harness.runs.audit.findings import KernelAudit
from harness.runs.audit.release_audit import ReleaseAudit
from harness.store.record_files import read_record_text


def audit_to_json(audit: ReleaseAudit) -> dict[str, Any]:
    return {
        "release": audit.release,
        "limits": audit.limits,
        "seconds": audit.seconds,
        "gpu": audit.gpu,
        "counts": audit.count_verdicts(),
        "findings": [
            asdict(finding)
            | {
                "condition": finding.condition,
                "nearness": finding.nearness,
                "rank": audit.rank(finding),
            }
            for finding in audit.findings
        ],
        "kernels": [asdict(kernel) for kernel in audit.kernels],
        "red_findings": [finding.key for finding in audit.red_findings],
        "not_counted": [] if audit.ranks is None else audit.ranks.uncounted,
        "rehearsal": None if audit.ranks is None else audit.ranks.run,
        "deployments": [asdict(finding) for finding in audit.headline],
    }


def read_record(file: Path) -> ReleaseAudit:
    try:
        data = json.loads(read_record_text(file))
        kernels = msgspec.convert(data["kernels"], tuple[KernelAudit, ...])
        return ReleaseAudit(data["release"], kernels, data["limits"], len(kernels), data["seconds"])
    except (ValueError, KeyError, TypeError) as error:
        raise UnfixError(f"{file} is no record that this `unfix audit --record` wrote") from error
