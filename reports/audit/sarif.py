"""An audit as SARIF 2.1.0, for code scanning."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from harness import __version__
from harness.runs.audit.deployment_ranks import DeploymentFinding
from harness.runs.audit.findings import AuditFinding
from harness.runs.audit.release_audit import ReleaseAudit
from harness.store.rehearse.values import FindingRank
from reports.audit import view
from reports.audit.fault_words import ALL_FAULT_WORDS, find_fault_words
from reports.shared.formatting import shorten_path

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {
    FindingRank.REACHABLE: "error",
    FindingRank.NEAR: "warning",
    FindingRank.POSSIBLE: "note",
}


def render_sarif(audit: ReleaseAudit) -> str:
    """Render what deployments reach or come near to, then what is possible alone."""
    counted = {finding.key for finding in audit.red_findings}
    results = [_make_headline_result(audit, finding) for finding in audit.headline]
    results += [_make_result(finding, finding.key in counted) for finding in audit.possible]
    rules = [(words.rule, words.description, words.mend) for words in ALL_FAULT_WORDS]
    return render_log("unfix audit", rules, results)


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


def _make_headline_result(audit: ReleaseAudit, line: DeploymentFinding) -> dict[str, Any]:
    """Make the result of a line that deployments reach, under the key of its own finding."""
    finding = audit.find_by_arithmetic(line)
    rule = find_fault_words(line.kind).rule
    names = ", ".join(line.deployments)
    return _make_entry(
        finding.kind if finding else rule,
        _LEVELS[line.rank],
        f"{line.rank} in {names}: {line.headline}. To see it: {line.command}",
        (line.file, line.line, line.text),
        finding.key if finding else (rule, *line.key[1:]),
    )


def _make_result(finding: AuditFinding, counts: bool) -> dict[str, Any]:
    level = "error" if finding.is_confirmed else "warning"
    return _make_entry(
        finding.kind,
        level if counts else _LEVELS[FindingRank.POSSIBLE],
        f"{finding.kernel}: {finding.condition}. {finding.arithmetic}. {finding.confirmed}",
        (finding.file, finding.line, finding.text),
        finding.key,
    )


def _make_entry(
    rule: str, level: str, message: str, place: tuple[str, int, str], key: tuple[str, ...]
) -> dict[str, Any]:
    file, line, text = place
    earlier = view.count_equal_lines_before(file, line)
    fingerprint = "\0".join((*key, *([str(earlier)] if earlier else [])))
    physical = {
        "artifactLocation": {"uri": f"python/{shorten_path(file)}"},
        "region": {"startLine": line, "snippet": {"text": text}},
    }
    return {
        "ruleId": rule,
        "level": level,
        "message": {"text": message},
        "locations": [{"physicalLocation": physical}],
        "partialFingerprints": {"kernelLine/v1": hashlib.sha256(fingerprint.encode()).hexdigest()},
    }
