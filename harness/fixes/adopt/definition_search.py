"""Searches another release for a definition that has moved: by its name, or by its words."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

from ast_grep_py import SgNode

from harness.core.cpp_scopes import CppScope, CppSource
from harness.core.cpp_tokens import is_cpp_path
from harness.core.source_scopes import (
    ModuleSource,
    get_defined_name,
    iterate_definitions,
    strip_decorators,
)
from harness.fixes.registry.schema import CodeTarget
from harness.releases.source_trees import SourceTree

SEARCHED_PACKAGES = ("sglang.srt", "sglang.kernels", "sglang.jit_kernel")
MIN_WORDS = 3  # the fewest words that identify code
MIN_WORD_SHARE = 0.75  # share of these words that must occur


def is_defined(target: CodeTarget, tree: SourceTree) -> bool:
    source = tree.read(target.module)
    return source is not None and bool(source.find_scopes(target.qualname))


def was_defined(target: CodeTarget, words: list[str], tree: SourceTree) -> bool:
    """Return whether a release defines this, with the words around an edit in it.

    Example: a wrapper goes, and the function behind it takes its name; the wrapper had no such
    words. Too few words identify no code, so a definition of the name is enough then.
    """
    source = tree.read(target.module)
    scopes = source.find_scopes(target.qualname) if source is not None else []
    if len(words) < MIN_WORDS:
        return bool(scopes)
    return any(_has_enough_words(words, _read_scope(source, scope)) for scope in scopes)


def _read_scope(source: ModuleSource | None, scope: Any) -> str:
    """Read the text of a definition, which of C++ is a run of the source's tokens."""
    if not isinstance(source, CppSource):
        return str(scope.text())
    if scope.first == scope.end:
        return ""
    return source.text[scope.tokens[scope.first].start : scope.tokens[scope.end - 1].end]


def find_in_place(target: CodeTarget, tree: SourceTree) -> list[CodeTarget]:
    return [target] if is_defined(target, tree) else []


def find_by_name(target: CodeTarget, tree: SourceTree) -> Iterator[CodeTarget]:
    """Yield definitions of that name in the same module, or else in all other modules."""
    name = target.qualname.rpartition(".")[2]
    if not name and is_cpp_path(target.module):
        yield from _find_moved_source(target, tree)
    if not name or name.startswith("__"):
        return
    named_alike = list(_find_named(name, target.module, tree))
    named_alike = [place for place in named_alike if place != target]
    if named_alike:
        yield from named_alike
        return
    for module in _list_searched_modules(tree, target.module):
        if module != target.module:
            yield from _find_named(name, module, tree)


def _find_moved_source(target: CodeTarget, tree: SourceTree) -> Iterator[CodeTarget]:
    """Yield the C++ sources with the name of one that is not there."""
    for path in tree.cpp_sources():
        if path.rpartition("/")[2] == target.module.rpartition("/")[2] and path != target.module:
            yield CodeTarget(path, "")


def _find_named(name: str, module: str, tree: SourceTree) -> Iterator[CodeTarget]:
    source = tree.read(module)
    # Search the text first: few modules contain the name, and parsing is ten times slower.
    if source is None or name not in source.text:
        return
    if not is_cpp_path(module) and not re.search(rf"\b(def|class) {name}\b", source.text):
        return
    for qualname in source.iterate_definition_names():
        if qualname.rpartition(".")[2] == name:
            yield CodeTarget(module, qualname)


def find_by_words(
    target: CodeTarget, words: list[str], tree: SourceTree, module_name: str
) -> Iterator[CodeTarget]:
    """Yield functions that contain the words around an edit, for a missing definition."""
    if len(words) < MIN_WORDS:
        return
    for module in [module_name] if module_name else _list_searched_modules(tree, target.module):
        source = tree.read(module)
        if source is None or not _has_enough_words(words, source.text):
            continue
        yield from (place for place in _find_innermost(source, words) if place != target)


def _find_innermost(source: ModuleSource, words: list[str]) -> list[CodeTarget]:
    """Find the innermost functions that contain these words."""
    if isinstance(source, CppSource):
        return [
            CodeTarget(source.module, definition.name)
            for definition in source.code.definitions
            if definition.parameters is not None
            and _has_enough_words(
                words, _read_scope(source, CppScope(source.code, definition.first, definition.end))
            )
        ]
    found: list[str] = []

    def search(scope: SgNode, prefix: str) -> bool:
        inside = False
        for definition in iterate_definitions(scope):
            if _has_enough_words(words, definition.text()):
                name = prefix + get_defined_name(definition)
                deeper = search(strip_decorators(definition), f"{name}.")
                if not deeper and _is_function(definition):
                    found.append(name)
                inside = True
        return inside

    search(source.root, "")
    return [CodeTarget(source.module, name) for name in dict.fromkeys(found)]


def _is_function(scope: SgNode) -> bool:
    return strip_decorators(scope).kind() == "function_definition"


def _has_enough_words(words: list[str], text: str) -> bool:
    return sum(word in text for word in words) >= MIN_WORD_SHARE * len(words)


@functools.lru_cache(maxsize=16)
def find_cpp_names(tree: SourceTree) -> frozenset[str]:
    """Find every word in the C++ sources of a release."""
    sources = (tree.read(path) for path in tree.cpp_sources())
    texts = (source.text for source in sources if source is not None)
    return frozenset(word for text in texts for word in re.findall(r"[A-Za-z_]\w*", text))


def _list_searched_modules(tree: SourceTree, module: str) -> list[str]:
    """List the modules, or C++ sources, in which a definition of this one may be now."""
    if is_cpp_path(module):
        return list(tree.cpp_sources())
    return [name for name in tree.modules() if name.startswith(SEARCHED_PACKAGES)]
