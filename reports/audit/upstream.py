"""A finding as the text of a report to whoever owns the kernel."""

from __future__ import annotations

from harness.audit.findings import Finding
from reports.audit import view
from reports.shared import markdown


def text(one: Finding, release: str) -> str:
    code = "\n".join(
        f"{'>' if here else ' '} {number:5} {line}" for number, line, here in view.around(one, 5, 2)
    )
    reached = [f"- {words}" for words in view.reached(one)]
    parts = [
        f"# `{one.kernel}`: an address is computed in {one.element} and wraps",
        f"SGLang {release}, `{view.place(one)}`:",
        markdown.block(code),
        f"**Smallest input.** {one.condition}. {one.arithmetic}.",
        f"**How it shows.** The `{one.access}` at line {one.access_line} goes to an address "
        "gigabytes before the tensor: an illegal memory access, or other data, without a word.",
        f"**How sure.** {_sure(one)}",
        f"**What would mend it.** {view.mend(one)}.",
    ]
    if reached:
        parts.append("**Who comes there.**\n" + "\n".join(reached))
    return "\n\n".join(parts)


def _sure(one: Finding) -> str:
    if one.confirmed == "confirmed":
        return (
            "Run on a CPU with every access checked: one below passes, at it the check stops at "
            "this line. Not run on a GPU."
        )
    return f"By arithmetic over the kernel's IR alone ({one.confirmed})."
