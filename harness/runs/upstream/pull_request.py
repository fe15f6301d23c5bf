"""The folder of a pull request: patch, test, script, text and evidence; and the index of all."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.core import paths
from harness.findings import pages
from harness.findings.reproduction import count_lines
from harness.findings.schema import Finding, RecordedEvidence, UpstreamThread
from harness.fixes.registry.schema import Toggle
from harness.runs.upstream import accuracy
from harness.runs.upstream.fix_patch import CHANGED_FILE
from harness.runs.upstream.verification import (
    PatchedFinding,
    SideOutcome,
    Verification,
    VerifiedState,
    find_launches,
)

_LINK = re.compile(r"\[([^]]+)\]\([\w-]+\.md\)")  # to another finding's page
_LINK_TEXT = r"\1"
_PLACE = re.compile(r"^# upstream: (\S+)", re.MULTILINE)
LONGEST_STATE = 3  # words, as in "open since 2025-09"


@dataclass(frozen=True)
class Backport:
    """A fix that SGLang has, for a release that lacks it."""

    toggle: Toggle
    release: str
    patch: str
    guards: Sequence[Path]  # the files of the tests that prove it
    proofs: Sequence[str]  # where they did, on this release


def write_folder(
    folder: Path, item: PatchedFinding, verification: Verification, release: str
) -> None:
    """Write the folder of a finding; an earlier one there is replaced."""
    _replace_folder(folder)
    (folder / "fix.patch").write_text(item.patch, encoding="utf-8")
    shutil.copy(item.test_file, folder)
    (folder / "repro.py").write_text(item.cut_script(verification.released), encoding="utf-8")
    text = "\n\n".join(_list_sections(item, verification, release))
    for thread in item.finding.upstream.threads:
        text = re.sub(rf"(?<![#\d]){thread.number}\b", f"#{thread.number}", text)
    (folder / "PR.md").write_text(text + "\n", encoding="utf-8")
    evidence = folder / "evidence"
    evidence.mkdir()
    for side, outcome in (("released", verification.released), ("patched", verification.patched)):
        if outcome.log:
            (evidence / f"{side}.txt").write_text(outcome.log, encoding="utf-8")
    for each in item.finding.evidence:
        if isinstance(each, RecordedEvidence):
            record = paths.project_folder() / each.record
            copy = shutil.copytree if record.is_dir() else shutil.copy
            copy(record, evidence / record.name)


def _list_sections(item: PatchedFinding, result: Verification, release: str) -> Iterator[str]:
    """List the sections of PR.md, with the headings of SGLang's template for pull requests."""
    finding, fix = item.finding, item.finding.fix
    yield f"# {finding.title}"
    yield f"## Motivation\n\n{_join_lines(finding.what)}"
    yield f"Who is hit: {_join_lines(finding.reach)}. Severity: {finding.severity.value}."
    ran = f"; seen on {', '.join(finding.ran)}" if finding.ran else ""
    yield f"Releases: `{finding.releases}`{ran}. First bad: {finding.first}."
    yield describe_reproduction(item, result)
    changed = list_changed_files(item.patch)
    yield f"## Modifications\n\n{_join_sentence(fix.why)}\n\n{changed}"
    yield f"## Accuracy before and after\n\n{accuracy.describe_accuracy(item, release)}"
    texts = [e for e in finding.evidence if not isinstance(e, RecordedEvidence)]
    yield "\n".join(f"- {_LINK.sub(_LINK_TEXT, _join_lines(text))}" for text in texts)
    if fix.cost:
        cost = describe_launches(item, release)
        yield f"## Cost of the fix\n\n{_join_sentence(fix.cost)}\n\n{cost}"
    yield f"## Tests run\n\n{describe_tests(item, result, release)}"
    threads = [
        f"- #{thread.number}: {_join_lines(thread.says)}" for thread in finding.upstream.threads
    ]
    head = f"## Related\n\nSearched on {finding.upstream.searched}: '{finding.upstream.words}'."
    yield "\n".join([head, "", *(threads or ["No thread is about it."])])


def list_changed_files(patch: str) -> str:
    return "\n".join(f"- `{file}`" for file in CHANGED_FILE.findall(patch))


def describe_reproduction(item: PatchedFinding, result: Verification) -> str:
    """Describe how the bug is seen: by the script, and on a server."""
    parts = []
    if result.script is not None:
        released, patched = result.script
        lines = count_lines(item.cut_script(result.released))
        parts.append(
            f"`python repro.py` ({lines} lines, {result.where}) exits with "
            f"{released.bad[0][2]}, and with the patch with {len(patched.bad)}:\n\n"
            f"    {_quote_error(result.released)}"
        )
    if item.finding.has_server:
        parts.append(f"On a server:\n\n```\n{item.finding.server.strip()}\n```")
    return "\n\n".join(parts)


def _quote_error(outcome: SideOutcome) -> str:
    _, error, message = outcome.bad[0]
    lines = [line for line in message.splitlines() if line.strip()]
    return "\n    ".join([f"{error}: {lines[0] if lines else ''}", *lines[1:4]])


def describe_launches(item: PatchedFinding, release: str) -> str:
    found = find_launches(item, release)
    if found is None:
        command = f"unfix upstream {item.finding.name} --record --device cuda"
        return f"**Not measured with this patch**: needs a GPU: `{command}`."
    gpu, timed = found
    rows = [
        (label, f"{time:.2f}", f"{timed.patched[label]:.2f}")
        for label, time in timed.released.items()
    ]
    head = (f"µs a launch in a CUDA graph, {gpu}, {timed.date}", "as released", "with `fix.patch`")
    return pages.format_table(head, rows)


def describe_tests(item: PatchedFinding, result: Verification, release: str) -> str:
    name = item.test_file.name
    place = _PLACE.search(item.test_file.read_text(encoding="utf-8"))
    where = f", for `{place[1]}`" if place else ""
    if result.state is VerifiedState.NEEDS_GPU:
        return f"`{name}`{where}: **{result.state.value}** ({result.problem})."
    rows = [
        (f"SGLang {release}", result.released.describe()),
        ("with `fix.patch`", result.patched.describe()),
    ]
    head = ("", f"`{name}`, {result.where}")
    table = pages.format_table(head, rows)
    problem = f"\n\n**{result.state.value}**: {result.problem}" if result.problem else ""
    return f"`python -m unittest {name}`{where}:\n\n{table}{problem}"


def write_backport(folder: Path, backport: Backport) -> None:
    toggle, release = backport.toggle, backport.release
    _replace_folder(folder)
    (folder / "fix.patch").write_text(backport.patch, encoding="utf-8")
    numbers = ", ".join(f"#{number}" for number in toggle.upstream) or "none"
    root = paths.project_folder()
    guards = "\n".join(f"- `{file.relative_to(root)}`" for file in backport.guards)
    proof = "\n".join(f"- {proof}" for proof in backport.proofs)
    sections = [
        f"# Backport to {release}: {toggle.title}",
        f"Upstream's pull requests: {numbers}. {release} lacks the fix.",
        f"## Motivation\n\nSymptom: {toggle.symptom.value}. {_join_sentence(toggle.why)}",
        f"## Modifications\n\n{list_changed_files(backport.patch)}",
        f"## Tests\n\nIts guards, which fail on {release} and pass with the fix:\n\n{guards}",
        f"`unfix prove {toggle.id} --release {release}` runs them. Recorded proofs:",
        proof or "**none on this release: not verified**",
    ]
    (folder / "PR.md").write_text("\n\n".join(sections) + "\n", encoding="utf-8")


def make_index(
    findings: Sequence[Finding], results: dict[str, Verification], refused: dict[str, str]
) -> str:
    """Make the list that a person works through: the worst first."""
    rows = []
    for finding in findings:
        name, result = finding.name, results.get(finding.name)
        state = refused.get(name) or (
            f"no fix: {finding.fix.none}" if not finding.fix.toggle else ""
        )
        if result is not None:
            state = f"{result.state.value}: {result.problem or result.where}"
        has_folder = result is not None and result.state is not VerifiedState.FAILED
        title = f"[{finding.title}]({name}/PR.md)" if has_folder else finding.title
        threads = ", ".join(map(describe_thread, finding.upstream.threads))
        cells = finding.severity.value, title, finding.reach, _join_lines(state), threads
        rows.append(cells)
    verified = sum(result.state is VerifiedState.VERIFIED for result in results.values())
    heads = "severity", "pull request", "who is hit", "state", "upstream's threads"
    table = pages.format_table(heads, rows)
    return f"# {verified} of {len(findings)} findings with a verified fix\n\n{table}\n"


def describe_thread(thread: UpstreamThread) -> str:
    """Return a thread's number and state, such as `#10019 open since 2025-09`."""
    state, colon, _ = thread.says.partition(":")
    is_state = bool(colon) and len(state.split()) <= LONGEST_STATE
    return f"[#{thread.number}]({pages.THREADS}/{thread.number}){f' {state}' if is_state else ''}"


def _replace_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _join_sentence(text: str) -> str:
    """Return a text as a sentence: with a capital, unless it begins with code, and a full stop."""
    joined = _join_lines(text)
    return f"{joined[:1].upper()}{joined[1:]}{'' if joined.endswith('.') or not joined else '.'}"


def _join_lines(text: str) -> str:
    return " ".join(text.split())
