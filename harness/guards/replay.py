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

from harness.core import device, paths
from harness.core.errors import UnfixError
from harness.guards.cells import CELL_KEY, GuardCell, Side
from harness.patching import bootstrap
from harness.patching.live_engine import engine

RELEASE_VARIABLE = "UNFIX_RELEASE"  # as it was asked for
_PYTEST_COMMAND = ("python", "-m", "pytest")
PASSED_PHRASE = "completed successfully"  # in Hypothesis's words
_BLOB_PATTERN = re.compile(r"reproduce_failure\('([^']+)', (b'[^']*')\)")


def extract_blob(error: BaseException) -> str:
    """Hypothesis's own words for the example that failed, or nothing."""
    found = _BLOB_PATTERN.search("\n".join(getattr(error, "__notes__", ())))
    return ast.literal_eval(found[2]).decode() if found else ""


def build_example_command(item: pytest.Item, error: BaseException) -> str:
    """The one line that runs this example again, or nothing if Hypothesis did not find it."""
    example = extract_blob(error)
    return build_replay_command(item, example) if example else ""


def build_replay_command(item: pytest.Item, example: str = "") -> str:
    """The one line that runs this test again on its side of its toggle, or one example of it."""
    words = [
        "./unfix",
        "exec",
        "--release",
        os.environ.get(RELEASE_VARIABLE, str(engine.sources.version)),
    ]
    reverted, enabled = bootstrap.read_requested_ids()
    words += [word for name in reverted for word in ("--revert", name)]
    words += [word for name in enabled for word in ("--enable", name)]
    words += [word for folder in bootstrap.read_toggle_folders() for word in ("--toggles", folder)]
    cell = item.stash.get(CELL_KEY, None)
    as_is = cell is None or cell.side is Side.AS_IS
    node = item.nodeid if cell is None or not as_is else find_guard_node(item, cell)
    again = [node]
    if not item.path.is_relative_to(paths.project_folder()):
        # Somebody's own folder: neither our conftest nor our root is found from there.
        again = ["-p", "harness.guards.plugin", f"--rootdir={item.config.rootpath}"]
        again.append(f"{item.path}::{node.partition('::')[2]}")
    again += [] if as_is else ["--teeth"]
    again += ["--device", device.get_device()] if device.get_device() != "cpu" else []
    again += ["--replay", example] if example else ["--profile", _read_profile(item)]
    return shlex.join([*words, "--", *_PYTEST_COMMAND, *again])


def _read_profile(item: pytest.Item) -> str:
    return str(item.config.getoption("profile"))


def find_guard_node(item: pytest.Item, cell: GuardCell) -> str:
    """The guard's own node: without the cell among its parameters."""
    ids = [name for name in item.callspec._idlist if name != str(cell)]  # type: ignore[attr-defined]
    own = item.originalname + (f"[{'-'.join(ids)}]" if ids else "")  # type: ignore[attr-defined]
    return f"{item.nodeid.removesuffix(item.name)}{own}"


@contextlib.contextmanager
def pin_example(test: Any, example: str) -> Iterator[None]:
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
def allow_passing_replay(item: pytest.Item) -> Iterator[None]:
    """An example of `--replay` that passes, passes: a search has to see that it does."""
    try:
        yield
    except hypothesis.errors.DidNotReproduce as error:
        if not item.config.getoption("replay") or PASSED_PHRASE not in str(error):
            raise  # the test draws otherwise now: nothing is shown


def set_replayed_example(item: Any, blob: str | None) -> None:
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
