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
from harness.patching import boot
from harness.patching.live import engine

_PYTEST = ("python", "-m", "pytest")
_BLOB = re.compile(r"reproduce_failure\('([^']+)', (b'[^']*')\)")


def line(item: pytest.Item, error: BaseException) -> str:
    """The one line that runs this example again, or nothing if Hypothesis did not find it."""
    found = _BLOB.search("\n".join(getattr(error, "__notes__", ())))
    if found is None:
        return ""
    blob = ast.literal_eval(found[2]).decode()
    words = ["./unfix", "exec", "--release", str(engine.sources.version)]
    reverted, enabled = boot.asked_for()
    words += [word for name in reverted for word in ("--revert", name)]
    words += [word for name in enabled for word in ("--enable", name)]
    teeth = ["--teeth"] if item.config.getoption("teeth") else []
    return shlex.join([*words, "--", *_PYTEST, item.nodeid, *teeth, "--replay", blob])


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
