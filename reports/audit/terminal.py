"""An audit on a terminal: the findings, the nearest to real models first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.audit.findings import Verdict
from harness.audit.run import Audit
from reports.audit import view
from reports.shared.terminal import plain, table

if TYPE_CHECKING:
    from rich.console import Console

MOST = 40  # findings; --all and the page have them all
_STYLES = {
    Verdict.SAFE: "green",
    Verdict.WRAPS: "bold red",
    Verdict.OVERRUNS: "bold red",
    Verdict.UNTOLD: "yellow",
}


def show(found: Audit, console: Console, everything: bool) -> None:
    findings = found.findings if everything else found.findings[:MOST]
    if findings:
        shown = table("#", "kernel, line", "when", "model", "seen")
        if any(one.since for one in findings):
            shown.add_column("since")
        for number, one in enumerate(findings, 1):
            cells = [
                plain(str(number), "dim"),
                plain(f"{one.kernel}\n{view.place(one)}\n{one.text}"),
                plain(f"{one.kind} {one.condition}\n{one.arithmetic}"),
                plain("\n".join(filter(None, (one.model or "the limits", one.setting)))),
                plain(one.confirmed, "green" if one.is_confirmed else "yellow"),
            ]
            shown.add_row(*cells, *([plain(one.since)] if one.since else []))
        console.print(shown)
    if len(findings) < len(found.findings):
        left = len(found.findings) - len(findings)
        console.print(plain(f"and {left} more: --all lists them, as does the page", "dim"))
    if everything:
        kernels = table("kernel", "module", "verdict", "why")
        for kernel in found.kernels:
            kernels.add_row(
                plain(kernel.kernel),
                plain(kernel.module),
                plain(kernel.verdict, _STYLES[kernel.verdict]),
                plain("; ".join(kernel.reasons)),
            )
        console.print(kernels)
    for reason, count in view.reasons(found)[: None if everything else 8]:
        console.print(plain(f"cannot tell, {count}: {reason}", "dim"), soft_wrap=True)
    console.print(plain(view.sentence(found), "bold red" if found.findings else "bold green"))
