"""An audit on a terminal: the findings, the nearest to real models first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.runs.audit.deployment_ranks import DeploymentRanks
from harness.runs.audit.release_audit import ReleaseAudit
from harness.store.rehearse.values import FindingRank
from reports.audit import view
from reports.shared.terminal import make_table, print_tables, to_plain_text

if TYPE_CHECKING:
    from rich.console import Console

MAX_FINDINGS = 40  # findings; --all and the page have them all


def _print_ranked(ranks: DeploymentRanks, console: Console) -> None:
    """Print what deployments reach, and what they come near to."""
    if not ranks.findings:
        return
    shown = make_table("rank", "kernel, line", "what", "deployments")
    for one in ranks.findings:
        names = ", ".join(one.deployments[:3])
        more = len(one.deployments) - 3
        shown.add_row(
            to_plain_text(one.rank, "bold red" if one.rank is FindingRank.REACHABLE else "yellow"),
            to_plain_text(f"{one.kernel}\n{one.file}:{one.line}\n{one.text}"),
            to_plain_text(f"{one.headline}\n{one.command}"),
            to_plain_text(names + (f" and {more} more" if more > 0 else "")),
        )
    console.print(shown)


def print_run(audit: ReleaseAudit, console: Console, show_all: bool) -> None:
    if audit.ranks is not None:
        _print_ranked(audit.ranks, console)
    most = None if show_all else 0 if audit.ranks is not None else MAX_FINDINGS
    findings = audit.findings[:most]
    if findings:
        shown = make_table("#", "kernel, line", "when", "model", "seen")
        if any(one.since for one in findings):
            shown.add_column("since")
        for number, one in enumerate(findings, 1):
            cells = [
                to_plain_text(str(number), "dim"),
                to_plain_text(f"{one.kernel}\n{view.describe_location(one)}\n{one.text}"),
                to_plain_text(f"{one.kind} {one.condition}\n{one.arithmetic}"),
                to_plain_text("\n".join(filter(None, (one.model or "the limits", one.setting)))),
                to_plain_text(one.confirmed, "green" if one.is_confirmed else "yellow"),
            ]
            shown.add_row(*cells, *([to_plain_text(one.since)] if one.since else []))
        console.print(shown)
    if len(findings) < len(audit.findings):
        left = len(audit.findings) - len(findings)
        console.print(to_plain_text(f"and {left} more: --all lists them, as does the page", "dim"))
    if show_all:
        print_tables([view.make_kernel_table(audit)], console)
    for reason, count in view.count_unknown_reasons(audit)[: None if show_all else 8]:
        console.print(to_plain_text(f"cannot tell, {count}: {reason}", "dim"), soft_wrap=True)
    console.print(
        to_plain_text(view.describe_audit(audit), "bold red" if audit.is_red else "bold green")
    )
