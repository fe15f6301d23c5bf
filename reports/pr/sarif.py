"""A review as SARIF 2.1.0, for code scanning: what is wrong at a line of the change."""

from __future__ import annotations

import hashlib
from typing import Any

from harness.store.pr.part_results import KernelAnswer, ToggleEffect
from harness.store.pr.values import PrRun
from reports.audit.sarif import render_log
from reports.pr import view

_RULES = (
    (
        "fix-taken-back",
        "A known fix is taken back",
        "Put the fix in again: `unfix show ID` has its story and its patch.",
    ),
    (
        "toggle-stale",
        "Neither form of a known fix is found any more",
        "See whether the fix is still there, and write a variant: `unfix drift --mend`.",
    ),
    (
        "audit-finding",
        "A kernel overflows or goes past a tensor",
        "Cast the number to tl.int64, or mask the access.",
    ),
    (
        "kernel-answers-differ",
        "A changed kernel gives other answers on the same launch",
        "Say in the pull request why, or compare the launch that is shown.",
    ),
    (
        "fault-unnoticed",
        "A fault in a changed line is noticed by no guard",
        "Strengthen the nearest guard, or write one.",
    ),
    (
        "guard-broken",
        "A guard that passed fails, or proves its toggle no more",
        "Run the guard on both ends: `unfix prove --release`. The review has its failure.",
    ),
    (
        "line-not-run",
        "Nothing here runs a changed line",
        "Write what runs it: the review names what comes nearest.",
    ),
    (
        "model-broken",
        "An architecture or a deployment that ran fails",
        "Run it on both ends: `unfix zoo`, `unfix rehearse`. The review has its failure.",
    ),
)


def render_sarif(run: PrRun) -> str:
    results = [
        _make_result(
            *("fix-taken-back", "error", toggle.path, toggle.line),
            f"{toggle.id}: {toggle.effect}: {toggle.title} ({toggle.symptom})",
        )
        for toggle in run.taken_back
    ]
    results += [
        _make_result(
            "toggle-stale", "warning", toggle.path, toggle.line, f"{toggle.id}: {toggle.why}"
        )
        for toggle in run.toggles
        if toggle.effect is ToggleEffect.STALE
    ]
    results += [
        _make_result(
            *(
                "audit-finding",
                "error" if finding.is_confirmed else "warning",
                finding.path,
                finding.line,
            ),
            f"{finding.kernel}: {finding.kind}: {finding.condition}. {finding.confirmed}",
        )
        for finding in run.findings
    ]
    for kernel in run.kernels:
        if kernel.answer in (KernelAnswer.REPORTED, KernelAnswer.DIFFERENT):
            level = "error" if kernel.answer is KernelAnswer.REPORTED else "warning"
            text = f"{kernel.kernel}: {kernel.answer}: {kernel.why}"
            results.append(
                _make_result("kernel-answers-differ", level, kernel.path, kernel.line, text)
            )
    results += [
        _make_result(
            *("fault-unnoticed", "note", fault.path, fault.line),
            f"{fault.outcome}: {fault.words}; the nearest guard: {fault.nearest}, {fault.nearness}",
        )
        for fault in run.faults
        if fault.nearest
    ]
    for path, faults in view.group_unguarded_faults(run).items():
        text = f"{view.describe_unguarded_faults(faults)}; {faults[0].nearness}"
        results.append(_make_result("fault-unnoticed", "note", path, faults[0].line, text))
    # A guard or a model has no line of its own: it stands at the changed lines that it ran.
    broken = [("guard-broken", text) for text in run.guard_problems]
    broken += [("model-broken", text) for text in run.model_problems]
    for rule, text in broken:
        path, line = _find_changed_line(run, text)
        results.append(_make_result(rule, "error", path, line, text))
    results += [
        _make_result(
            *("line-not-run", "note", one.path, one.unrun[0].line),
            f"{one.result}: {len(one.unrun)} of {one.changed} changed lines; {one.nearest}",
        )
        for one in run.functions
        if one.unrun
    ]
    return render_log("unfix pr", _RULES, results)


def _find_changed_line(run: PrRun, text: str) -> tuple[str, int]:
    for function in run.functions:
        if text in function.evidence:
            return function.path, function.line
    return (run.files[0].path if run.files else ""), 1


def _make_result(rule: str, level: str, path: str, line: int, text: str) -> dict[str, Any]:
    place: dict[str, Any] = {"artifactLocation": {"uri": path or "python/sglang/__init__.py"}}
    place["region"] = {"startLine": max(1, line)}
    key = hashlib.sha256("\0".join((rule, path, text)).encode()).hexdigest()
    return {
        "ruleId": rule,
        "level": level,
        "message": {"text": text},
        "locations": [{"physicalLocation": place}],
        "partialFingerprints": {"reviewLine/v1": key},
    }
