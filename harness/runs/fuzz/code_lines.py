"""What there is to cover: lines of the files that toggles change, and of the toggled functions."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from types import CodeType

from harness.fixes.matching.toggle_status import ToggleState, ToggleStatus
from harness.runs.fuzz.messages import CodeFile


def collect_code_files(findings: Iterable[ToggleStatus]) -> list[CodeFile]:
    """The files that these toggles change in a release."""
    found: dict[str, CodeFile] = {}
    for finding in findings:
        if finding.state not in (ToggleState.FIXED, ToggleState.BUGGY):
            continue
        for site in finding.sites:
            source = site.source
            path = source.path
            if path not in found:
                lines = sorted(find_function_lines(compile(source.text, path, "exec")))
                found[path] = CodeFile(path, f"sglang/{path.rpartition('/sglang/')[2]}", lines, [])
            file = found[path]
            inside = set(file.toggled_lines)
            for scope in source.find_scopes(site.target.qualname):
                first, last = scope.range().start.line + 1, scope.range().end.line + 1
                inside |= {line for line in file.lines if first <= line <= last}
            file.toggled_lines = sorted(inside)
    return sorted(found.values(), key=lambda file: file.name)


def find_function_lines(code: CodeType) -> set[int]:
    """Lines that run when functions are called; what an import runs is no news."""
    found: set[int] = set()
    for each in _iter_code_objects(code):
        if each.co_flags & inspect.CO_OPTIMIZED:
            found |= {line for _, _, line in each.co_lines() if line} - {each.co_firstlineno}
    return found


def _iter_code_objects(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _iter_code_objects(each)
