"""One failing example again: the line that is printed, and what that line does."""

from __future__ import annotations

import ast
import base64
import binascii
import re
import shlex
from typing import Any

import hypothesis
import pytest

from harness.errors import UnfixError
from harness.guards.cells import CELL, Cell, Side
from harness.patching import boot
from harness.patching.live import engine

_PYTEST = ("python", "-m", "pytest")
_BLOB = re.compile(r"reproduce_failure\('([^']+)', (b'[^']*')\)")


def line(item: pytest.Item, error: BaseException) -> str:
    """The one line that runs this example again, or nothing if Hypothesis did not find it."""
    found = _BLOB.search("\n".join(getattr(error, "__notes__", ())))
    return command(item, ast.literal_eval(found[2]).decode()) if found else ""


def command(item: pytest.Item, blob: str = "") -> str:
    """The one line that runs this test again on its side of its toggle, or one example of it."""
    words = ["./unfix", "exec", "--release", str(engine.sources.version)]
    reverted, enabled = boot.asked_for()
    words += [word for name in reverted for word in ("--revert", name)]
    words += [word for name in enabled for word in ("--enable", name)]
    cell = item.stash.get(CELL, None)
    node = item.nodeid if cell is None else node_on(item.nodeid, cell)
    teeth = ["--teeth"] if cell is not None and cell.side is not Side.AS_IS else []
    again = ["--replay", blob] if blob else []
    return shlex.join([*words, "--", *_PYTEST, node, *teeth, *again])


def node_on(node: str, cell: Cell) -> str:
    """A node as `--teeth` names it; one that runs as it is has no cell in its name."""
    return without_cell(node, cell) if cell.side is Side.AS_IS else node


def without_cell(node: str, cell: Cell) -> str:
    """The guard's own node: pytest joins a test's parameters by dashes."""
    name, bracket, rest = node.rpartition("[")
    kept = f"-{rest.removesuffix(']')}-".replace(f"-{cell}-", "-", 1).strip("-")
    return f"{name}[{kept}]" if bracket and kept else name or node


def reproduce(item: Any, blob: str | None) -> None:
    """Make an item run the one example that a blob holds."""
    if blob is None:
        return
    try:
        base64.b64decode(blob, validate=True)
    except (binascii.Error, ValueError) as error:
        raise pytest.UsageError(f"--replay {blob}: {error}") from error
    if not hasattr(item.obj, "hypothesis"):
        raise UnfixError(f"{item.nodeid} has no examples to replay")
    item.obj = hypothesis.reproduce_failure(hypothesis.__version__, blob.encode())(item.obj)
