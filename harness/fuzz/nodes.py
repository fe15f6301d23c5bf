"""What a test is called: from the project on if it is ours, by its own file otherwise."""

from __future__ import annotations

from typing import Any

from harness.fuzz import failures
from harness.guards import replay
from harness.guards.cells import CELL


def node_of(item: Any) -> str:
    """A test's node, without its side of a toggle."""
    cell = item.stash.get(CELL, None)
    node: str = item.nodeid if cell is None else replay.guard(item, cell)
    return failures.node(item.path, node.partition("::")[2])
