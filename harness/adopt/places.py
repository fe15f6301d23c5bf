"""Where a definition may have gone in another release: by its name, or by what stands in it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ast_grep_py import SgNode

from harness.registry.schema import Target
from harness.releases.sources import SourceTree
from harness.syntax.scopes import ModuleSource, defined_name, definitions, undecorated

WHERE = ("sglang.srt", "sglang.kernels", "sglang.jit_kernel")
FEW = 3  # words that tell code from other code
ABOUT = 0.75  # of them, what must be there


def defined(place: Target, tree: SourceTree) -> bool:
    source = tree.read(place.module)
    return source is not None and bool(source.scopes(place.qualname))


def same(target: Target, tree: SourceTree) -> list[Target]:
    return [target] if defined(target, tree) else []


def elsewhere(target: Target, tree: SourceTree) -> Iterator[Target]:
    """Definitions of that name, in that module first and in all others else."""
    name = target.qualname.rpartition(".")[2]
    if not name or name.startswith("__"):
        return
    own = list(_named(name, target.module, tree))
    own = [place for place in own if place != target]
    if own:
        yield from own
        return
    for module in _searched(tree):
        if module != target.module:
            yield from _named(name, module, tree)


def _named(name: str, module: str, tree: SourceTree) -> Iterator[Target]:
    source = tree.read(module)
    # A plain search first: the name is in few modules, and the other takes ten times as long.
    if source is None or name not in source.text:
        return
    if not re.search(rf"\b(def|class) {name}\b", source.text):
        return
    for qualname in source.definition_names():
        if qualname.rpartition(".")[2] == name:
            yield Target(module, qualname)


def about(target: Target, words: list[str], tree: SourceTree, only: str) -> Iterator[Target]:
    """Functions that hold the words that stand around an edit, where its own is gone."""
    if len(words) < FEW:
        return
    for module in [only] if only else _searched(tree):
        source = tree.read(module)
        if source is None or not _holds(words, source.text):
            continue
        yield from (place for place in _innermost(source, words) if place != target)


def _innermost(source: ModuleSource, words: list[str]) -> list[Target]:
    """The functions that hold these words, without those that only hold such a function."""
    found: list[str] = []

    def look(scope: SgNode, prefix: str) -> bool:
        inside = False
        for one in definitions(scope):
            if _holds(words, one.text()):
                name = prefix + defined_name(one)
                deeper = look(undecorated(one), f"{name}.")
                if not deeper and _is_function(one):
                    found.append(name)
                inside = True
        return inside

    look(source.root, "")
    return [Target(source.module, name) for name in dict.fromkeys(found)]


def _is_function(scope: SgNode) -> bool:
    return undecorated(scope).kind() == "function_definition"


def _holds(words: list[str], text: str) -> bool:
    return sum(word in text for word in words) >= ABOUT * len(words)


def _searched(tree: SourceTree) -> list[str]:
    return [name for name in tree.modules() if name.startswith(WHERE)]
