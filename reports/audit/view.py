"""Phrases and counts that all reports of an audit share."""

from __future__ import annotations

import ast
import functools
import linecache
import zipfile

from harness.core.outcomes import Verdict
from harness.core.wording import format_count
from harness.runs.audit.deployment_ranks import DeploymentFinding
from harness.runs.audit.findings import AuditFinding, FindingKind
from harness.runs.audit.release_audit import ReleaseAudit
from harness.store.rehearse.values import FindingRank
from reports.shared.formatting import shorten_path
from reports.shared.tables import ReportTable, TableCell, TableRows, make_code_cell

VERDICT_TONES = {
    Verdict.SAFE: "good",
    Verdict.OVERFLOWS: "broken",
    Verdict.OVERRUNS: "broken",
    Verdict.CANNOT_TELL: "bug",
}


def make_kernel_table(audit: ReleaseAudit) -> ReportTable:
    numbers: dict[tuple[str, str], int] = {}  # of each kernel's first finding
    for number, finding in enumerate(audit.possible, 1):
        numbers.setdefault((finding.module, finding.kernel), number)
    rows: TableRows = [
        [
            make_code_cell(
                kernel.kernel,
                f"#finding-{numbers[kernel.module, kernel.kernel]}"
                if (kernel.module, kernel.kernel) in numbers
                else "",
            ),
            make_code_cell(kernel.module),
            TableCell(kernel.verdict, VERDICT_TONES[kernel.verdict]),
            "; ".join(kernel.reasons),
        ]
        for kernel in audit.kernels
    ]
    return ReportTable("Every kernel", ("kernel", "module", "verdict", "why"), rows)


def make_finding_table(audit: ReleaseAudit) -> ReportTable:
    rows: TableRows = [
        [
            make_code_cell(finding.kernel),
            make_code_cell(describe_location(finding)),
            make_code_cell(finding.text),
            f"{finding.kind} {finding.condition}",
            finding.confirmed,
        ]
        for finding in audit.possible
    ]
    title = "Findings" if audit.ranks is None else "Possible by arithmetic alone"
    return ReportTable(title, ("kernel", "place", "line", "when", "seen"), rows)


def make_headline_table(audit: ReleaseAudit) -> ReportTable:
    """Make the table of what deployments reach, and what they come near to."""
    rows: TableRows = [
        [
            finding.rank,
            make_code_cell(finding.kernel),
            make_code_cell(f"{shorten_path(finding.file)}:{finding.line}"),
            make_code_cell(finding.text),
            finding.headline,
            name_deployments(finding),
            make_code_cell(finding.command),
        ]
        for finding in audit.headline
    ]
    heads = ("rank", "kernel", "place", "line", "what", "deployments", "command")
    return ReportTable("What deployments reach", heads, rows)


def name_deployments(finding: DeploymentFinding, most: int = 3) -> str:
    more = len(finding.deployments) - most
    names = ", ".join(finding.deployments[:most])
    return f"{names} and {more} more" if more > 0 else names


def describe_audit(audit: ReleaseAudit) -> str:
    counts = audit.count_verdicts()
    verdicts = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    confirmed = sum(finding.is_confirmed for finding in audit.findings)
    if audit.ranks is not None:
        possible = audit.possible
        launched = audit.ranks.count_launched(possible)
        counted = len(audit.red_findings)
        new = f", {counted} of them new, which counts" if counted else ""
        return (
            f"{audit.ranks.count(FindingRank.REACHABLE)} reachable and "
            f"{audit.ranks.count(FindingRank.NEAR)} near in {audit.ranks.deployments} deployments "
            f"of {audit.ranks.release}; possible by arithmetic alone: "
            f"{format_count(len(possible), 'finding')}{new}, "
            f"{launched} of them in kernels that a deployment launches"
        )
    count = format_count(len(audit.findings), "finding")
    found = {(finding.module, finding.kernel) for finding in audit.findings}
    return (
        f"{f'{count} in {len(found)} of' if found else 'No finding in'} "
        f"{format_count(len(audit.kernels), 'kernel')} of {audit.release}; {verdicts}; "
        f"{format_count(confirmed, 'finding')} confirmed"
    )


def list_uncounted_deployments(audit: ReleaseAudit) -> list[str]:
    """Say of each deployment that did not start and finish why not, and if none did."""
    if audit.ranks is None:
        return []
    none = [f"no deployment of {audit.ranks.release} counts"] if not audit.ranks.deployments else []
    return [f"not counted: {words}" for words in audit.ranks.uncounted] + none


def describe_location(finding: AuditFinding) -> str:
    return f"{shorten_path(finding.file)}:{finding.line}"


def name_model(finding: AuditFinding) -> str:
    """Name the model whose shape overflows; '' for a kernel that no language model launches."""
    return "" if "/diffusion/" in finding.file else finding.model


def describe_affected_models(finding: AuditFinding) -> list[str]:
    """Describe the models that reach the threshold, with the server setting that lets them."""
    by = f" ({finding.setting})" if finding.setting else ""
    if finding.kind is FindingKind.OVERFLOWS:
        when = "from {} = {:,} on"
    else:
        when = "at {} = {:,}" if finding.quantity else "at any load"
    return [
        f"{reach.model}: {when.format(finding.quantity, reach.threshold)}{by}"
        for reach in finding.reaches
        if reach.threshold and name_model(finding)
    ]


def count_unknown_reasons(audit: ReleaseAudit) -> list[tuple[str, int]]:
    """Count the reasons of kernels with an unknown verdict, the most frequent first."""
    counts: dict[str, int] = {}
    for kernel in audit.kernels:
        if kernel.verdict is Verdict.CANNOT_TELL:
            for reason in kernel.reasons[:1]:
                counts[reason] = counts.get(reason, 0) + 1
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


@functools.lru_cache(maxsize=256)
def read_source_lines(file: str) -> tuple[str, ...]:
    if ".whl" in file:
        wheel, _, path = file.partition(".whl")
        with zipfile.ZipFile(f"{wheel}.whl") as opened:
            return tuple(opened.read(path.lstrip("/!")).decode().splitlines())
    return tuple(line.rstrip("\n") for line in linecache.getlines(file))


def count_equal_lines_before(file: str, line: int) -> int:
    """Count the lines with the same text before a line, in its function."""
    lines = [text.strip() for text in read_source_lines(file)[:line]]
    heads = [number for number, text in enumerate(lines) if text.startswith("def ")]
    inside = lines[heads[-1] :] if heads else lines
    return inside[:-1].count(inside[-1]) if inside else 0


def get_surrounding_lines(
    finding: AuditFinding | DeploymentFinding, before: int = 8, after: int = 4
) -> list[tuple[int, str, bool]]:
    """Return the lines around a finding: number, text, and True for the finding's lines."""
    text = read_source_lines(finding.file)
    first = max(0, finding.line - 1 - before)
    return [
        (number + 1, text[number], number + 1 == finding.line)
        for number in range(first, min(len(text), finding.line + after))
    ]


def suggest_fix(finding: AuditFinding) -> str:
    """Suggest a fix: the first factor of the product cast to 64 bits, or a mask."""
    if finding.kind is FindingKind.OVERRUNS:
        return f"a mask that ends where `{finding.element}` ends, or a larger `{finding.element}`"
    return suggest_cast(finding.text)


def suggest_cast(text: str) -> str:
    """Suggest a cast of the first factor of a line's product to 64 bits."""
    try:
        tree = ast.parse(text.rstrip(",").lstrip("+ "))
    except SyntaxError:
        return "a cast of the row's number to tl.int64 before it is multiplied"
    products = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
    ]
    if not products:
        return "a cast to tl.int64 before the sum"
    first = ast.unparse(products[-1].left)
    return f"`{first}.to(tl.int64)` in place of `{first}`"
