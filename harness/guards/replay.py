"""The replay of one failing example: the command for it, and the option `--replay`."""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import shlex
from collections.abc import Iterator
from typing import Any

import hypothesis
import hypothesis.errors
import pytest

from harness.core import device, paths
from harness.core.errors import UnfixError
from harness.guards import hypothesis_adapter, pytest_adapter, sides
from harness.guards.cells import GUARDED_STATUS, Side
from harness.patching import bootstrap
from harness.patching.child_environment import RELEASE_VARIABLE
from harness.patching.live_engine import engine


def build_example_command(item: pytest.Item, error: BaseException) -> str:
    """Return the command that runs this example again, or '' if Hypothesis did not find it."""
    blob = hypothesis_adapter.extract_blob(error)
    return build_replay_command(item, blob) if blob else ""


def build_replay_command(item: pytest.Item, blob: str = "") -> str:
    """Return the command that runs a test, or one example of it, again on its side."""
    release = os.environ.get(RELEASE_VARIABLE, str(engine.sources.version))
    reverted, enabled = bootstrap.read_requested_ids()
    command = ["./unfix", "exec", "--release", release]
    command += [word for name in reverted for word in ("--revert", name)]
    command += [word for name in enabled for word in ("--enable", name)]
    for folder in bootstrap.read_toggle_folders():
        command += ["--toggles", folder]
    command += ["--", "python", "-m", "pytest"]
    attempt = item.config.stash.get(sides.SIDE_ATTEMPT, None)
    has_sides = attempt is not None and attempt.side is not Side.AS_IS
    node = item.nodeid if has_sides else find_guard_node(item)
    if item.path.is_relative_to(paths.project_folder()):
        command.append(node)
    else:  # from a user's folder pytest finds neither our conftest nor our root
        command += ["-p", "harness.guards.plugin", f"--rootdir={item.config.rootpath}"]
        command.append(f"{item.path}::{node.partition('::')[2]}")
    command += ["--teeth"] if has_sides else []
    command += ["--device", device.get_device()] if device.get_device() != "cpu" else []
    profile = str(item.config.getoption("profile"))
    command += ["--replay", blob] if blob else ["--profile", profile]
    return shlex.join(command)


def find_guard_node(item: pytest.Item) -> str:
    """Return the guard's own node, without its toggle among the parameters."""
    status = item.stash.get(GUARDED_STATUS, None)
    if status is None:
        return item.nodeid
    return pytest_adapter.remove_parameter_id(item, status.toggle.id)


@contextlib.contextmanager
def allow_passing_replay(item: pytest.Item) -> Iterator[None]:
    """Accept a pass of the example of `--replay`, which a search over releases needs to see."""
    try:
        yield
    except hypothesis.errors.DidNotReproduce as error:
        passed = hypothesis_adapter.PASSED_PHRASE in str(error)
        if not item.config.getoption("replay") or not passed:
            raise  # the test has other draws now, so the example proves nothing


def set_replayed_example(item: Any, blob: str | None, has_no_side: bool) -> None:
    """Make an item run only the example of a blob; `--teeth` repeats it on each side."""
    if blob is None:
        return
    try:
        base64.b64decode(blob, validate=True)
    except (binascii.Error, ValueError) as error:
        raise pytest.UsageError(f"--replay {blob}: {error}") from error
    if not hypothesis_adapter.draws_examples(item.obj):
        raise UnfixError(f"{item.nodeid} has no examples to replay")
    if has_no_side:
        reproduce = hypothesis.reproduce_failure(hypothesis.__version__, blob.encode())
        item.obj = reproduce(item.obj)
