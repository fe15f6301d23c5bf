"""An audit as SARIF 2.1.0, for code scanning."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from harness import __version__
from harness.audit.findings import Finding, Kind
from harness.audit.run import Audit
from reports.audit import view

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_RULES = (
    (
        Kind.WRAPS,
        "An integer wraps on its way into an address",
        "Cast the number to tl.int64 before it is multiplied.",
    ),
    (
        Kind.OVERRUNS,
        "An access goes past the tensor that it is made for",
        "Mask it with the tensor's size, or make the tensor larger.",
    ),
)


def text(found: Audit) -> str:
    rules = [
        {"id": kind, "shortDescription": {"text": text}, "help": {"text": mend}}
        for kind, text, mend in _RULES
    ]
    driver = {"name": "unfix audit", "version": __version__, "rules": rules}
    run = {"tool": {"driver": driver}, "results": [_result(one) for one in found.findings]}
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _result(one: Finding) -> dict[str, Any]:
    region = {"startLine": one.line, "snippet": {"text": one.text}}
    physical = {"artifactLocation": {"uri": f"python/{view.short(one.file)}"}, "region": region}
    return {
        "ruleId": one.kind,
        "level": "error" if one.is_confirmed else "warning",
        "message": {"text": f"{one.kernel}: {one.condition}. {one.arithmetic}. {one.confirmed}"},
        "locations": [{"physicalLocation": physical}],
        "partialFingerprints": {
            "kernelLine/v1": hashlib.sha256("\0".join(one.key).encode()).hexdigest()
        },
    }
