"""What a test is called: from the project on if it is ours, by its own file otherwise."""

from __future__ import annotations

from typing import Any

from harness.guards import replay
from harness.guards.cells import CELL_KEY
from harness.runs.fuzz import failure_files


def get_node_id(item: Any) -> str:
    """A test's node, without its side of a toggle."""
    cell = item.stash.get(CELL_KEY, None)
    node: str = item.nodeid if cell is None else replay.find_guard_node(item, cell)
    return failure_files.make_node_id(item.path, node.partition("::")[2])
