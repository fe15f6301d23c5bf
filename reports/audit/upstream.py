"""A finding as the text of a report to the kernel's maintainers."""

from __future__ import annotations

from harness.runs.audit.deployment_ranks import DeploymentFinding
from harness.runs.audit.findings import CONFIRMED, AuditFinding, FindingKind
from harness.store.rehearse.values import FindingRank
from reports.audit import view
from reports.audit.fault_words import find_fault_words
from reports.shared import markdown
from reports.shared.formatting import shorten_path

_KIND_SENTENCES = {
    FindingKind.OVERFLOWS: (
        "an address is computed in {} and overflows",
        "to an address gigabytes before the tensor: an illegal memory access, or silently "
        "other data",
    ),
    FindingKind.OVERRUNS: (
        "an access goes past `{}`",
        "to whatever lies beside the tensor, mostly silently",
    ),
}


def render_deployment_report(line: DeploymentFinding, release: str) -> str:
    """Render a line that deployments reach or come near to: by their sizes, and by no guess."""
    title = find_fault_words(line.kind).title
    verb = "reaches it" if line.rank is FindingRank.REACHABLE else "comes near to it"
    parts = [
        f"# `{line.kernel}`: {title}",
        f"SGLang {release}, `{shorten_path(line.file)}:{line.line}`:",
        _render_code(line),
        f"**Which deployment {verb}.** {', '.join(line.deployments)}: {line.headline}.",
        f"**To reproduce.** `{line.command}`",
        "**How sure.** SGLang made the launch at that size, with a model's published "
        "configuration, as rank 0 on a virtual GPU; programs of its grid ran on a CPU with each "
        "address checked.",
    ]
    if line.is_overflow:
        parts.append(f"**Proposed fix.** {view.suggest_cast(line.text)}.")
    return "\n\n".join(parts)


def _render_code(place: AuditFinding | DeploymentFinding) -> str:
    return markdown.render_code_block(
        "\n".join(
            f"{'>' if is_reported else ' '} {number:5} {line}"
            for number, line, is_reported in view.get_surrounding_lines(place, 5, 2)
        )
    )


def render_upstream_report(finding: AuditFinding, release: str) -> str:
    reached = [f"- {words}" for words in view.describe_affected_models(finding)]
    title, shows = _KIND_SENTENCES[finding.kind]
    parts = [
        f"# `{finding.kernel}`: {title.format(finding.element)}",
        f"SGLang {release}, `{view.describe_location(finding)}`:",
        _render_code(finding),
        f"**Smallest input.** {finding.condition}. {finding.arithmetic}.",
        f"**How it shows.** The `{finding.access}` at line {finding.access_line} goes {shows}.",
        f"**How sure.** {_describe_evidence(finding)}",
        f"**Proposed fix.** {view.suggest_fix(finding)}.",
    ]
    if reached:
        parts.append("**Who reaches it.**\n" + "\n".join(reached))
    return "\n\n".join(parts)


def _describe_evidence(finding: AuditFinding) -> str:
    if not finding.is_confirmed:
        return f"By arithmetic over the kernel's IR alone ({finding.confirmed})."
    if finding.confirmed == CONFIRMED:
        gpu = f"Not seen on a GPU ({finding.on_gpu})" if finding.on_gpu else "Not run on a GPU"
        return (
            "Run on a CPU with every access checked: an input one smaller passes, with this "
            f"one the check stops at this line. {gpu}."
        )
    card, _, part = finding.on_gpu.partition(": ")
    extent = f"Of the launch {part} were" if part else "The whole launch was"
    return (
        f"{extent} run on an {card}, in real memory and with checks compiled in: "
        "an input one smaller passes, with this one the line overflows."
    )
