"""Definitions of a module or a C++ source, for a merge: as tokens, and the names that they know."""

from __future__ import annotations

import builtins
import keyword
import re
from collections import Counter
from typing import Any

from harness.core.cpp_scopes import CppSource
from harness.core.cpp_tokens import is_cpp_path
from harness.core.source_scopes import ModuleSource
from harness.fixes.adopt import cpp_lines
from harness.fixes.adopt.code_tokens import CodeToken, PortError, tokenize_code
from harness.fixes.adopt.cpp_diff import CppModuleDiff
from harness.fixes.adopt.definition_search import find_cpp_names
from harness.fixes.adopt.module_diff import ModuleDiff
from harness.fixes.adopt.text_diff import TextDiff
from harness.fixes.patterns import get_indent, get_span
from harness.releases.source_trees import SourceTree

ScopeTokens = tuple[list[CodeToken], str, int, int]


def compare_texts(module: str, fixed: str, buggy: str) -> TextDiff[Any, Any]:
    """Compare two texts of a module, or of a C++ source."""
    diff_type = CppModuleDiff if is_cpp_path(module) else ModuleDiff
    return diff_type(module, fixed, buggy)


def make_source(module: str, text: str) -> ModuleSource:
    return (CppSource if is_cpp_path(module) else ModuleSource)(module, "", text)


def tokenize_scope(source: ModuleSource, qualname: str) -> tuple[list[CodeToken], str, int, int]:
    scopes = source.find_scopes(qualname)
    if len(scopes) != 1:
        raise PortError(f"{qualname or 'it'} is defined {len(scopes)} times")
    start, end = locate_scope(source, scopes[0])
    if isinstance(source, CppSource):
        return cpp_lines.tokenize_scope(scopes[0], source.text), "", start, end
    indent = get_indent(source.text, start)
    return tokenize_code(source.text[start:end], indent), indent, start, end


def locate_scope(source: ModuleSource, scope: Any) -> tuple[int, int]:
    return cpp_lines.locate_scope(scope) if isinstance(source, CppSource) else get_span(scope)


def find_unknown_names(
    new_tokens: list[CodeToken], old_tokens: list[CodeToken], source: ModuleSource, tree: SourceTree
) -> list[str]:
    """Find the names that an edit adds and that the release does not define.

    A name in C++ may come from any header: it is unknown if no C++ source of the release has it.
    """
    new = Counter(t.text for t in new_tokens if t.is_name)
    new.subtract(t.text for t in old_tokens if t.is_name)
    if isinstance(source, CppSource):
        known = {t.text for t in source.code.tokens} | find_cpp_names(tree)
        added = [name for name, many in new.items() if many > 0 and name not in known]
        return [name for name in added if not _is_declared(name, new_tokens)]
    return [
        name
        for name, many in new.items()
        if many > 0
        and not keyword.iskeyword(name)
        and not hasattr(builtins, name)
        and not re.search(rf"\b{re.escape(name)}\b", source.text)
        and not _is_bound(name, new_tokens)
    ]


def _is_declared(name: str, new_tokens: list[CodeToken]) -> bool:
    """Return whether the edit declares the name: a type stands in front of it."""
    places = [n for n, token in enumerate(new_tokens) if token.text == name]
    return bool(places) and re.fullmatch(r"[\w>*&]+", new_tokens[places[0] - 1].text) is not None


def _is_bound(name: str, new_tokens: list[CodeToken]) -> bool:
    """Return whether the edit assigns the name, or uses it as an attribute."""
    texts = [t.text for t in new_tokens]
    return any(
        text == name and (texts[n + 1 : n + 2] == ["="] or texts[n - 1 : n] == ["."])
        for n, text in enumerate(texts)
    )
