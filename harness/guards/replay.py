"""One failing example again: the line that is printed, and what that line does."""

from __future__ import annotations

import ast
import base64
import binascii
import contextlib
import os
import re
import shlex
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

from harness import device, paths
from harness.errors import UnfixError
from harness.guards.cells import CELL, Cell, Side
from harness.patching import boot
from harness.patching.live import engine

RELEASE = "UNFIX_RELEASE"  # as it was asked for
_PYTEST = ("python", "-m", "pytest")
PASSED = "completed successfully"  # in Hypothesis's words
_BLOB = re.compile(r"reproduce_failure\('([^']+)', (b'[^']*')\)")


def blob(error: BaseException) -> str:
    """Hypothesis's own words for the example that failed, or nothing."""
    found = _BLOB.search("\n".join(getattr(error, "__notes__", ())))
    return ast.literal_eval(found[2]).decode() if found else ""


def line(item: pytest.Item, error: BaseException) -> str:
    """The one line that runs this example again, or nothing if Hypothesis did not find it."""
    example = blob(error)
    return command(item, example) if example else ""


def command(item: pytest.Item, example: str = "") -> str:
    """The one line that runs this test again on its side of its toggle, or one example of it."""
    words = ["./unfix", "exec", "--release", os.environ.get(RELEASE, str(engine.sources.version))]
    reverted, enabled = boot.asked_for()
    words += [word for name in reverted for word in ("--revert", name)]
    words += [word for name in enabled for word in ("--enable", name)]
    words += [word for folder in boot.folders() for word in ("--toggles", folder)]
    cell = item.stash.get(CELL, None)
    as_is = cell is None or cell.side is Side.AS_IS
    node = item.nodeid if cell is None or not as_is else guard(item, cell)
    again = [node]
    if not item.path.is_relative_to(paths.project()):
        # Somebody's own folder: neither our conftest nor our root is found from there.
        again = ["-p", "harness.guards.plugin", f"--rootdir={item.config.rootpath}"]
        again.append(f"{item.path}::{node.partition('::')[2]}")
    again += [] if as_is else ["--teeth"]
    again += ["--device", device.get()] if device.get() != "cpu" else []
    again += ["--replay", example] if example else ["--profile", _profile(item)]
    return shlex.join([*words, "--", *_PYTEST, *again])


def _profile(item: pytest.Item) -> str:
    return str(item.config.getoption("profile"))


def guard(item: pytest.Item, cell: Cell) -> str:
    """The guard's own node: without the cell among its parameters."""
    ids = [name for name in item.callspec._idlist if name != str(cell)]  # type: ignore[attr-defined]
    own = item.originalname + (f"[{'-'.join(ids)}]" if ids else "")  # type: ignore[attr-defined]
    return f"{item.nodeid.removesuffix(item.name)}{own}"


@contextlib.contextmanager
def reproducing(test: Any, example: str) -> Iterator[None]:
    """Have a Hypothesis test run one example and nothing else, for as long as the block lasts."""
    function = getattr(test, "__func__", test)
    name = "_hypothesis_internal_use_reproduce_failure"
    missing = object()
    before = getattr(function, name, missing)
    setattr(function, name, (hypothesis.__version__, example.encode()))
    try:
        yield
    finally:
        if before is missing:
            delattr(function, name)
        else:
            setattr(function, name, before)


@contextlib.contextmanager
def mended(item: pytest.Item) -> Iterator[None]:
    """An example of `--replay` that passes, passes: a search has to see that it does."""
    try:
        yield
    except hypothesis.errors.DidNotReproduce as error:
        if not item.config.getoption("replay") or PASSED not in str(error):
            raise  # the test draws otherwise now: nothing is shown


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
