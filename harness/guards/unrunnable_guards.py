"""Guards that cannot run: each is reported with its reason, and the others still run."""

from __future__ import annotations

import ast
import functools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import UnfixError
from harness.guards import cells, pytest_adapter

UNRUNNABLE_REASON = pytest.StashKey[str]()  # the reason why an item never runs
ONE_SIDED_REASON = (
    "a guard is a function or a method of a plain class, which pytest can parametrise: "
    "this one cannot be run on both sides"
)


class UnbuildableTest(pytest.Item):
    """A replacement for a test that pytest cannot build, which reports the test by its name."""

    def __init__(self, *, reason: str, function: object, **plain: Any) -> None:
        super().__init__(**plain)
        self.reason = reason
        self.own_markers.extend(pytest_adapter.get_unpacked_marks(function))

    def runtest(self) -> None:
        raise AssertionError(self.reason)


def make_unbuildable_test(
    collector: pytest.Collector, name: str, function: object, reason: str
) -> UnbuildableTest:
    test: UnbuildableTest = UnbuildableTest.from_parent(
        collector, name=name, reason=reason, function=function
    )
    return test


def find_unrunnable_reason(item: pytest.Item, both_sides: bool) -> str:
    """Return the reason why a guard cannot run; empty if it can, or if the test is no guard."""
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
    return ONE_SIDED_REASON if both_sides and cells.GUARDED_STATUS not in item.stash else ""


def read_guarded_names(item: pytest.Item) -> list[str]:
    """Return the toggles that a guard names; unknown names stay as they are."""
    names: list[str] = []
    for word in (word for mark in item.iter_markers(cells.GUARDS_MARKER) for word in mark.args):
        try:
            names += [toggle.id for toggle in cells.load_registry().select(str(word))]
        except UnfixError:
            names.append(str(word))
    return list(dict.fromkeys(names))


def _find_shadowed_name(item: pytest.Item) -> str:
    name = getattr(item, "originalname", "")
    scope = [node.name for node in item.listchain() if isinstance(node, pytest.Class)]
    qualname = ".".join([*scope, name])
    return qualname if qualname in _find_redefined_tests(item.path) else ""


@functools.cache
def _find_redefined_tests(file: Path) -> frozenset[str]:
    """Return the tests of a file that a later test of the same name replaces."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError):  # not Python: another plugin collects its items
        return frozenset()
    redefined: set[str] = set()
    scopes: list[tuple[str, list[ast.stmt]]] = [("", tree.body)]
    while scopes:
        scope, body = scopes.pop()
        inside = [node for node in body if isinstance(node, ast.ClassDef)]
        scopes += [(f"{scope}{node.name}.", node.body) for node in inside]
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        counts = Counter(scope + node.name for node in body if isinstance(node, functions))
        redefined.update(name for name, count in counts.items() if count > 1)
    return frozenset(redefined)
