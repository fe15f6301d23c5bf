"""An audit as SARIF 2.1.0, for code scanning."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from harness import __version__
from harness.runs.audit.findings import AuditFinding, FindingKind
from harness.runs.audit.release_audit import ReleaseAudit
from harness.store.rehearse.values import FindingRank
from reports.audit import view

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_RULES = (
    (
        FindingKind.OVERFLOWS,
        "An integer wraps on its way into an address",
        "Cast the number to tl.int64 before it is multiplied.",
    ),
    (
        FindingKind.OVERRUNS,
        "An access goes past the end of its tensor",
        "Mask it with the tensor's size, or make the tensor larger.",
    ),
)


_LEVELS = {
    FindingRank.REACHABLE: "error",
    FindingRank.NEAR: "warning",
    FindingRank.POSSIBLE: "note",
}


def render_sarif(audit: ReleaseAudit) -> str:
    results = [_make_result(audit, one) for one in audit.findings]
    return render_log("unfix audit", _RULES, results)


def render_log(
    name: str, rules: Iterable[tuple[str, str, str]], results: list[dict[str, Any]]
) -> str:
    """Render the results of one tool; a rule is its id, its text, and how to mend what it finds."""
    described = [
        {"id": rule, "shortDescription": {"text": text}, "help": {"text": mend}}
        for rule, text, mend in rules
    ]
    driver = {"name": name, "version": __version__, "rules": described}
    run = {"tool": {"driver": driver}, "results": results}
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _get_level(audit: ReleaseAudit, finding: AuditFinding) -> str:
    """Return how loud a finding is: by its rank if deployments were rehearsed."""
    if audit.ranks is None:
        return "error" if finding.is_confirmed else "warning"
    return _LEVELS[audit.rank(finding)]


def _make_result(audit: ReleaseAudit, finding: AuditFinding) -> dict[str, Any]:
    region = {"startLine": finding.line, "snippet": {"text": finding.text}}
    sentences = f"{finding.condition}. {finding.arithmetic}. {finding.confirmed}"
    physical = {
        "artifactLocation": {"uri": f"python/{view.shorten_path(finding.file)}"},
        "region": region,
    }
    return {
        "ruleId": finding.kind,
        "level": _get_level(audit, finding),
        "message": {"text": f"{finding.kernel}: {sentences}"},
        "locations": [{"physicalLocation": physical}],
        "partialFingerprints": {
            "kernelLine/v1": hashlib.sha256("\0".join(finding.key).encode()).hexdigest()
        },
    }
