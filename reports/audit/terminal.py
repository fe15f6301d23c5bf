"""An audit on a terminal: the findings, the nearest to real models first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.runs.audit.release_audit import ReleaseAudit
from harness.store.rehearse.values import FindingRank
from reports.audit import view
from reports.shared.formatting import shorten_path
from reports.shared.terminal import make_table, print_tables, to_plain_text

if TYPE_CHECKING:
    from rich.console import Console

MAX_FINDINGS = 40  # of a table; --all and the page have them all


def _print_headline(audit: ReleaseAudit, console: Console, show_all: bool) -> None:
    """Print what deployments reach, and what they come near to."""
    headline = audit.headline[: None if show_all else MAX_FINDINGS]
    if not headline:
        return
    shown = make_table("#", "rank", "kernel, line", "what", "deployments")
    for number, finding in enumerate(headline, 1):
        shown.add_row(
            to_plain_text(str(number), "dim"),
            to_plain_text(
                finding.rank, "bold red" if finding.rank is FindingRank.REACHABLE else "yellow"
            ),
            to_plain_text(
                f"{finding.kernel}\n{shorten_path(finding.file)}:{finding.line}\n{finding.text}"
            ),
            to_plain_text(f"{finding.headline}\n{finding.command}"),
            to_plain_text(view.name_deployments(finding)),
        )
    console.print(shown)
    _print_left_out(len(audit.headline) - len(headline), console)


def _print_left_out(count: int, console: Console) -> None:
    if count:
        console.print(to_plain_text(f"and {count} more: --all lists them, as does the page", "dim"))


def print_run(
    audit: ReleaseAudit, console: Console, show_all: bool, lists_possible: bool = False
) -> None:
    """Print an audit; what is possible alone and does not count is folded away."""
    _print_headline(audit, console, show_all)
    folds = audit.ranks is not None and not lists_possible
    possible = audit.possible
    most = min(len(audit.red_findings), MAX_FINDINGS) if folds else MAX_FINDINGS
    findings = possible[: None if show_all else most]
    if findings:
        shown = make_table("#", "kernel, line", "when", "model", "seen")
        if any(finding.since for finding in findings):
            shown.add_column("since")
        for number, finding in enumerate(findings, len(audit.headline) + 1):
            cells = [
                to_plain_text(str(number), "dim"),
                to_plain_text(
                    f"{finding.kernel}\n{view.describe_location(finding)}\n{finding.text}"
                ),
                to_plain_text(f"{finding.kind} {finding.condition}\n{finding.arithmetic}"),
                to_plain_text(
                    "\n".join(
                        filter(None, (view.name_model(finding) or "the limits", finding.setting))
                    )
                ),
                to_plain_text(finding.confirmed, "green" if finding.is_confirmed else "yellow"),
            ]
            shown.add_row(*cells, *([to_plain_text(finding.since)] if finding.since else []))
        console.print(shown)
    _print_left_out(len(possible) - len(findings), console)
    if show_all:
        print_tables([view.make_kernel_table(audit)], console)
    for reason, count in view.count_unknown_reasons(audit)[: None if show_all else 8]:
        console.print(to_plain_text(f"cannot tell, {count}: {reason}", "dim"), soft_wrap=True)
    for words in view.list_uncounted_deployments(audit):
        console.print(to_plain_text(words, "yellow"), soft_wrap=True)
    console.print(
        to_plain_text(view.describe_audit(audit), "bold red" if audit.is_red else "bold green")
    )
