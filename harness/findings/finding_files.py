"""Reads findings/*.yaml, with every check that needs no release; errors name file and line.

The test of a finding has its name: `gptj-bias.yaml` has `upstream/test_gptj_bias.py`.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from harness.core import paths
from harness.core.errors import UnfixError
from harness.core.source_scopes import ReleaseSources
from harness.core.wording import find_nearest_word
from harness.core.yaml_document import YamlDocument
from harness.findings.reproduction import LONGEST_SCRIPT, count_lines, cut_script, list_tests
from harness.findings.schema import Finding, RecordedEvidence, Severity
from harness.fixes.registry import toggle_catalogue
from harness.fixes.registry.toggle_reader import HIDDEN_CHARACTERS

MAX_WORDS = 80  # of `what`: symptom and cause
_NEEDS_GPU = re.compile(r"^register_cuda_ci\(", re.MULTILINE)
_RUNS_ON_CPU = re.compile(r"^register_cpu_ci\(", re.MULTILINE)


class FindingFile(YamlDocument):
    """A finding's file; its errors say what a value should be."""

    def explain_problem(self, path: str, problem: str) -> str:
        if "enum value" in problem:
            return f"{problem}; it is one of {', '.join(each.value for each in Severity)}"
        if "Expected `array`" in problem:
            return f"{problem}: each item begins with '- '; `[]` if there is none"
        if "RFC3339" in problem or "Invalid" in problem:
            return f"{problem}; write the day as 2026-11-29"
        return "empty" if "\\S" in problem else problem


def get_findings_folder() -> Path:
    return paths.project_folder() / "findings"


def get_test_file(name: str) -> Path:
    return get_findings_folder() / "upstream" / f"test_{name.replace('-', '_')}.py"


def get_launches_file(name: str) -> Path:
    """Return the file of the launches that are timed with and without a finding's fix."""
    return get_findings_folder() / "launches" / f"{name.replace('-', '_')}.py"


def is_test_file(file: Path) -> bool:
    return file.parent.resolve() == get_findings_folder() / "upstream"


def needs_gpu(test_text: str) -> bool:
    """Return whether a test is registered for CUDA alone."""
    return bool(_NEEDS_GPU.search(test_text)) and not _RUNS_ON_CPU.search(test_text)


def launches_kernels(test_text: str) -> bool:
    """Return whether a test launches kernels: on a GPU, or else in Triton's interpreter."""
    return needs_gpu(test_text) or "TRITON_INTERPRET" in test_text


def load_findings() -> list[Finding]:
    """Load all findings, the worst first; raise for the first file that is wrong."""
    proposed = toggle_catalogue.find_proposed_files()
    files = sorted(get_findings_folder().glob("*.yaml"))
    findings = [read_finding(file, proposed) for file in files]
    _check_names(findings, proposed)
    return sorted(findings, key=lambda finding: finding.sort_key)


def find_finding(name: str) -> Finding:
    """Find a finding by its name or by its toggle's id."""
    findings = load_findings()
    for finding in findings:
        if name in (finding.name, finding.fix.toggle):
            return finding
    near = find_nearest_word(name, [finding.name for finding in findings])
    hint = f"; near it: {near}" if near else ""
    raise UnfixError(f"no finding is called '{name}'{hint}; they are in {get_findings_folder()}")


def read_finding(path: Path, proposed: Iterable[str]) -> Finding:
    """Read one file; `proposed` are the ids of the proposed toggles."""
    document = FindingFile(path)
    finding = document.convert_to(Finding)
    if finding.name:
        raise document.make_error_at("name: a finding has the name of its file", "name")
    finding = msgspec.structs.replace(finding, name=path.stem)
    for place, problem in _list_problems(finding, set(proposed)):
        raise document.make_error_at(f"{'.'.join(place)}: {problem}", *place)
    return finding


def _list_problems(finding: Finding, proposed: set[str]) -> Iterator[tuple[tuple[str, ...], str]]:
    """List the places of a file that are wrong, and what to write there."""
    try:
        is_empty = not SpecifierSet(finding.releases)
    except InvalidSpecifier:
        is_empty = True
    if is_empty:
        yield ("releases",), f"'{finding.releases}' names no release; write it like '>=0.5.9'"
    if finding.severity.needs_reproduction and not finding.has_server:
        yield from _list_script_problems(finding)
    count = len(finding.what.split())
    if count > MAX_WORDS:
        yield ("what",), f"it has {count} words: say symptom and cause in {MAX_WORDS}"
    for key, text in (("title", finding.title), ("what", finding.what)):
        if match := HIDDEN_CHARACTERS.search(text):
            yield (key,), f"the hidden character {match[0]!a}"
    if finding.upstream.searched > datetime.date.today():
        yield ("upstream", "searched"), "that day is in the future: write the day of the search"
    fix = finding.fix
    if bool(fix.toggle) == bool(fix.none.strip()):
        yield ("fix",), "give `toggle`, the id of a proposed one, or `none`, why there is no fix"
    elif fix.toggle and fix.toggle not in proposed:
        yield ("fix", "toggle"), f"write toggles/proposed/{fix.toggle}.yaml, which is not there"
    elif fix.toggle and not get_test_file(finding.name).is_file():
        yield (
            ("fix", "toggle"),
            f"write its test findings/upstream/{get_test_file(finding.name).name}",
        )
    if fix.toggle and not fix.cost and any(f.startswith("kernels/") for f in finding.files):
        yield ("fix",), "it changes a kernel: say in `cost` what that costs, as measured"
    if fix.cost and not get_launches_file(finding.name).is_file():
        yield ("fix", "cost"), f"write its launches, {get_launches_file(finding.name)}"
    for each in finding.evidence:
        record = each.record if isinstance(each, RecordedEvidence) else ""
        has_records = paths.project_folder() != paths.CARRIED_FOLDER  # of a wheel
        if has_records and record and not (paths.project_folder() / record).exists():
            yield ("evidence",), f"there is no record {record}"
    if finding.table is not None:
        width = len(finding.table.columns)
        for row in finding.table.rows:
            if len(row) != width:
                yield (
                    ("table", "rows"),
                    f"a row has {len(row)} cells, and there are {width} columns",
                )


def _list_script_problems(finding: Finding) -> Iterator[tuple[tuple[str, ...], str]]:
    """List why a finding without a server command for a published model has no short script."""
    test = get_test_file(finding.name)
    text = test.read_text(encoding="utf-8") if test.is_file() else ""
    counts = [count_lines(cut_script(text, name)) for name in list_tests(text)]
    if not counts or min(counts) > LONGEST_SCRIPT:
        yield (
            ("severity",),
            f"a finding of severity '{finding.severity.value}' needs `server`, a command with a "
            f"published model, or in {test.name} a test whose script has at most {LONGEST_SCRIPT} "
            f"lines; the shortest has {min(counts, default='none')}",
        )


def _check_names(findings: list[Finding], proposed: Iterable[str]) -> None:
    """Check that each proposed toggle and test belongs to one finding."""
    toggles = [finding.fix.toggle for finding in findings if finding.fix.toggle]
    for toggle in proposed:
        if toggles.count(toggle) != 1:
            raise UnfixError(
                f"toggles/proposed/{toggle}.yaml belongs to {toggles.count(toggle)} findings: name "
                "it in `fix.toggle` of exactly one"
            )
    names = {get_test_file(finding.name) for finding in findings}
    for file in sorted((get_findings_folder() / "upstream").glob("*.py")):
        if file not in names:
            raise UnfixError(f"{file} belongs to no finding: its name is that of one, with '_'")


def find_missing_code(finding: Finding, sources: ReleaseSources) -> list[str]:
    """Find the files and functions of a finding that a release's sources do not have."""
    modules = {file: sources.read(name_module(file)) for file in finding.files}
    missing = [f"file: there is no {file}" for file, source in modules.items() if source is None]
    known = [source for source in modules.values() if source is not None]
    return missing + [
        f"function: no file of it defines {function}"
        for function in finding.functions
        if not any(source.find_scopes(function) for source in known)
    ]


def name_module(file: str) -> str:
    path = f"sglang/{file}"
    return path.removesuffix(".py").replace("/", ".") if file.endswith(".py") else path
