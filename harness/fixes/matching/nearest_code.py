"""For a stale toggle: the code that is most similar to one of its forms, as a diff."""

from __future__ import annotations

import difflib
import heapq
import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from typing import Any

from harness.core.cpp_tokens import is_cpp_path
from harness.core.source_scopes import ModuleSource, ReleaseSources
from harness.fixes.patterns import remove_whitespace
from harness.fixes.registry.schema import CodeTarget, ToggleEdit

WORD = re.compile(r"\w+")


def find_nearest_source(edit: ToggleEdit, target: CodeTarget, sources: ReleaseSources) -> str:
    """Describe the most similar code, or the most similar definition if the target is missing."""
    source = sources.read(target.module)
    scopes = source.find_scopes(target.qualname) if source is not None else []
    if source is None or not scopes:
        return find_nearest_definition(target, sources)
    return find_nearest_code(edit, scopes, source)


def find_nearest_code(edit: ToggleEdit, scopes: list[Any], source: ModuleSource) -> str:
    """Find the target's lines most similar to either form, as a diff from that form."""
    best_ratio, best_form, best_code, best_line = 0.0, edit.fixed, "", 0
    for side in (edit.fixed, edit.buggy):
        height = max(1, len(side.strip().splitlines()))
        wanted = remove_whitespace(side)
        for line, code in select_likely_windows(iterate_windows(scopes, source, height), side):
            matcher = difflib.SequenceMatcher(None, wanted, remove_whitespace(code), autojunk=False)
            if (ratio := matcher.ratio()) > best_ratio:
                best_ratio, best_form, best_code, best_line = ratio, side, code, line
    if not best_code:
        return ""
    which = "fixed" if best_form == edit.fixed else "buggy"
    return format_diff(
        textwrap.dedent(best_form).strip(),
        textwrap.dedent(best_code).strip(),
        f"the {which} form",
        f"{source.path}:{best_line}",
    )


def select_likely_windows(
    windows: Iterator[tuple[int, str]], pattern: str
) -> list[tuple[int, str]]:
    """Select windows that share most words with a pattern: counting is faster than comparing."""
    wanted = Counter(WORD.findall(pattern))

    def unlike(window: tuple[int, str]) -> int:
        found = Counter(WORD.findall(window[1]))
        return (found - wanted).total() + 2 * (wanted - found).total()

    return heapq.nsmallest(12, windows, key=unlike)


def iterate_windows(
    scopes: list[Any], source: ModuleSource, height: int
) -> Iterator[tuple[int, str]]:
    """Yield every run of source lines in the scopes with about the height of a pattern."""
    lines = source.text.split("\n")
    for scope in scopes:
        start, last = source.get_lines(scope)
        for first in range(start, last + 1):
            for extra in (0, 1, 2):
                if first + height + extra <= last + 1:
                    yield first + 1, "\n".join(lines[first : first + height + extra])


def find_nearest_definition(target: CodeTarget, sources: ReleaseSources) -> str:
    """Find possible new places of a target: its name elsewhere, similar names in its module."""
    name = target.qualname.rpartition(".")[2]
    own_source = sources.read(target.module)
    names = list(own_source.iterate_definition_names()) if own_source is not None else []
    near = difflib.get_close_matches(target.qualname, names, n=3, cutoff=0.6) if name else []
    elsewhere = (
        list(iterate_moved_targets(target, sources))
        if name
        else find_similar_modules(target, sources)
    )
    lines = [f"near it: {target.module}:{close}" for close in near]
    lines += [f"may have moved to: {place}" for place in elsewhere[:5]]
    return "\n".join(lines)


def iterate_moved_targets(target: CodeTarget, sources: ReleaseSources) -> Iterator[str]:
    parts = target.qualname.split(".")
    for module in list_likely_modules(target, sources):
        if module == target.module:
            continue
        source = sources.read(module)
        if source is None or not all(part in source.text for part in parts):
            continue
        if source.find_scopes(target.qualname):
            yield f"{module}:{target.qualname}"


def list_likely_modules(target: CodeTarget, sources: ReleaseSources) -> list[str]:
    """List the modules of a target's own language."""
    return list(sources.cpp_sources() if is_cpp_path(target.module) else sources.modules())


def find_similar_modules(target: CodeTarget, sources: ReleaseSources) -> list[str]:
    return difflib.get_close_matches(
        target.module, list_likely_modules(target, sources), n=3, cutoff=0.7
    )


def format_diff(before: str, after: str, before_name: str, after_name: str) -> str:
    return "\n".join(
        difflib.unified_diff(
            before.splitlines(), after.splitlines(), before_name, after_name, lineterm="", n=3
        )
    )
