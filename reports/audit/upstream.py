"""A finding as the text of a report to whoever owns the kernel."""

from __future__ import annotations

from harness.audit.findings import CONFIRMED, Finding, Kind
from reports.audit import view
from reports.shared import markdown

_WORDS = {
    Kind.WRAPS: (
        "an address is computed in {} and wraps",
        "to an address gigabytes before the tensor: an illegal memory access, or other data, "
        "without a word",
    ),
    Kind.OVERRUNS: (
        "an access goes past `{}`",
        "to whatever lies beside the tensor, mostly without a word",
    ),
}


def text(one: Finding, release: str) -> str:
    code = "\n".join(
        f"{'>' if here else ' '} {number:5} {line}" for number, line, here in view.around(one, 5, 2)
    )
    reached = [f"- {words}" for words in view.reached(one)]
    title, shows = _WORDS[one.kind]
    parts = [
        f"# `{one.kernel}`: {title.format(one.element)}",
        f"SGLang {release}, `{view.place(one)}`:",
        markdown.block(code),
        f"**Smallest input.** {one.condition}. {one.arithmetic}.",
        f"**How it shows.** The `{one.access}` at line {one.access_line} goes {shows}.",
        f"**How sure.** {_sure(one)}",
        f"**What would mend it.** {view.mend(one)}.",
    ]
    if reached:
        parts.append("**Who comes there.**\n" + "\n".join(reached))
    return "\n\n".join(parts)


def _sure(one: Finding) -> str:
    if not one.is_confirmed:
        return f"By arithmetic over the kernel's IR alone ({one.confirmed})."
    if one.confirmed == CONFIRMED:
        gpu = f"Not seen on a GPU ({one.on_gpu})" if one.on_gpu else "Not run on a GPU"
        return (
            "Run on a CPU with every access checked: one below passes, at it the check stops at "
            f"this line. {gpu}."
        )
    card, _, part = one.on_gpu.partition(": ")
    what = f"Of the launch {part} were" if part else "The whole launch was"
    return (
        f"{what} run on an {card}, in real memory and with checks compiled in: "
        "one below passes, at it this line wraps."
    )
