"""The page of a finding, and the table of all of them, as Markdown."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from harness.findings.finding_files import get_test_file, needs_gpu
from harness.findings.schema import Finding, RecordedEvidence, Severity

THREADS = "https://github.com/sgl-project/sglang/issues"


def make_page(finding: Finding) -> str:
    """Make docs/findings/NAME.md."""
    commands = [*([finding.server] if finding.server else []), *finding.unfix]
    parts = [f"# {finding.title}", " ".join(finding.what.split())]
    if commands:
        lines = (line for command in commands for line in command.strip().splitlines())
        parts.append("\n".join(f"    {line}" for line in lines))
    facts = ((name, " ".join(text.split())) for name, text in _list_facts(finding))
    parts.append("\n".join(f"- **{name}:** {text}" for name, text in facts))
    if finding.table is not None:
        parts.append(format_table(finding.table.columns, finding.table.rows))
    return "\n\n".join(parts) + "\n"


def _list_facts(finding: Finding) -> Iterator[tuple[str, str]]:
    ran = f"; seen on {', '.join(finding.ran)}" if finding.ran else "; not run"
    first_bad = cut_clause(finding.first)
    is_said = first_bad.removesuffix(" or earlier") in finding.releases
    first = "" if is_said else f"; first bad: {first_bad}"
    files, functions = finding.files, finding.functions
    yield "severity", f"{finding.severity.value}; {finding.reach}"
    yield "releases", f"`{finding.releases}`{ran}{first}"
    code, where = (", ".join(f"`{name}`" for name in names) for names in (functions, files))
    yield "code", f"{code} in {where}"
    if finding.fix.toggle:
        test = get_test_file(finding.name)
        device = "; test on a GPU" if needs_gpu(test.read_text(encoding="utf-8")) else ""
        yield (
            "fix",
            f"`--enable {finding.fix.toggle}`; {cut_clause(finding.fix.why)}{device}",
        )
    else:
        yield "fix", f"none yet: {finding.fix.none.strip()}; {finding.fix.why}"
    one = finding.evidence[0]
    yield "seen", f"`{one.record}`" if isinstance(one, RecordedEvidence) else cut_clause(one)
    search = finding.upstream
    threads = "; ".join(
        f"[#{t.number}]({THREADS}/{t.number}) {cut_clause(t.says) if not place else ''}".strip()
        for place, t in enumerate(search.threads)
    )
    yield "upstream", f"searched {search.searched}: {threads or 'nothing'}"


def cut_clause(text: str) -> str:
    """Return a text up to its first semicolon: the file of the finding has all of it."""
    return text.partition(";")[0].strip()


_WITH_OPTIONS = {
    "default": ", default options",
    "opt-in": ", opt-in",
    "": ", other options or models",
}


def make_index(findings: Iterable[Finding]) -> str:
    """Make the lists of docs/findings.md, in the order of the findings, by severity and options."""
    parts = []
    for (severity, option), group in itertools.groupby(findings, key=_name_group):
        with_options = _WITH_OPTIONS[option] if severity.needs_reproduction else ""
        parts.append(f"**{severity.value.capitalize()}{with_options}**")
        parts.append("\n".join(map(_make_entry, group)))
    return "\n\n".join(parts)


def _name_group(finding: Finding) -> tuple[Severity, str]:
    severity = finding.severity
    return severity, finding.option if severity.needs_reproduction else ""


def _make_entry(finding: Finding) -> str:
    notes = ["no fix yet"] * (not finding.fix.toggle)
    notes += [f"`{finding.releases}`"] * ("<" in finding.releases)
    more = f" ({', '.join(notes)})" if notes else ""
    return f"- [{finding.title}](findings/{finding.name}.md){more}"


def format_table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(columns)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(escape_pipes(cell) for cell in line)} |" for line in lines)


def escape_pipes(text: str) -> str:
    return text.replace("|", "\\|")
