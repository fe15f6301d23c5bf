"""Guards that cannot be run at all: each is named with its reason, and takes no other with it."""

from __future__ import annotations

import ast
import functools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.structures import get_unpacked_marks

from harness.core.errors import UnfixError
from harness.guards import cells

UNRUNNABLE_REASON = pytest.StashKey[str]()  # why an item is never run


class UnbuildableTest(pytest.Item):
    """Stands for a test of which pytest could not make one: it is named where others are."""

    def __init__(self, *, reason: str, function: object, **plain: Any) -> None:
        super().__init__(**plain)
        self.reason = reason
        self.own_markers.extend(get_unpacked_marks(function))

    def runtest(self) -> None:
        raise AssertionError(self.reason)


def make_unbuildable_test(
    collector: pytest.Collector, name: str, function: object, reason: str
) -> UnbuildableTest:
    made: UnbuildableTest = UnbuildableTest.from_parent(
        collector, name=name, why=reason, function=function
    )
    return made


def find_unrunnable_reason(item: pytest.Item, both_sides: bool) -> str:
    """Why it is no guard that can be run; nothing if it is one, or no guard at all."""
    if isinstance(item, UnbuildableTest):
        return item.reason
    if name := _find_shadowed_name(item):
        return f"{item.path.name} defines {name} more than once: pytest sees the last one alone"
    try:
        marks = cells.read_guard_marks(item)
    except UnfixError as error:
        return str(error)
    if marks is None:
        return ""
    if item.get_closest_marker("xfail"):
        return "a guard that is expected to fail guards nothing"
    return cells.ONE_SIDED_REASON if both_sides and cells.CELL_KEY not in item.stash else ""


def read_guarded_names(item: pytest.Item) -> list[str]:
    """The toggles it is about, as far as they can be told."""
    found: dict[str, None] = {}
    for word in (word for mark in item.iter_markers(cells.GUARDS_MARKER) for word in mark.args):
        try:
            found.update((toggle.id, None) for toggle in cells.load_registry().select(str(word)))
        except UnfixError:
            found[str(word)] = None
    return list(found)


def _find_shadowed_name(item: pytest.Item) -> str:
    name = getattr(item, "originalname", "")
    scope = [node.name for node in item.listchain() if isinstance(node, pytest.Class)]
    qualname = ".".join([*scope, name])
    return qualname if qualname in _find_redefined_tests(item.path) else ""


@functools.cache
def _find_redefined_tests(file: Path) -> frozenset[str]:
    """Tests of a file that a later one of the same name has taken the place of."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError):  # it holds no Python, and its items are another plugin's
        return frozenset()
    found: set[str] = set()
    scopes: list[tuple[str, list[ast.stmt]]] = [("", tree.body)]
    while scopes:
        scope, body = scopes.pop()
        inside = [node for node in body if isinstance(node, ast.ClassDef)]
        scopes += [(f"{scope}{node.name}.", node.body) for node in inside]
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        counts = Counter(scope + node.name for node in body if isinstance(node, functions))
        found.update(name for name, count in counts.items() if count > 1)
    return frozenset(found)
