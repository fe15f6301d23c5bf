"""Guards hold with operators that refuse what the compiled ones of a GPU refuse."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli.test import command
from harness.core import paths
from harness.releases import source_trees

SHORT = "test_choosing.py::test_what_is_short_is_taken_whole_without_scores"


def is_between_others() -> bool:
    """Return whether older and newer releases run these tests as well."""
    tree = source_trees.find_installed_tree()
    assert tree is not None
    return str(tree.version) in command.INSTALLED_RELEASES[1:-1]


@pytest.mark.skipif("UNFIX_NIGHTLY" not in os.environ and is_between_others(), reason="at night")
def test_the_guards_of_topk_hold_with_operators_of_one_topk() -> None:
    words = ["-p", "real_limits", "-p", "no:cacheprovider", "-vv", "-n0"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "--teeth", "-m", "guards", "suites/topk_offset"],
        cwd=paths.project_folder(),
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent), "UNFIX_DEVICE": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert re.search(rf"{re.escape(SHORT)}\[20606.*\] PASSED", done.stdout)
