"""A small SGLang with a bug, its finding, its proposed fix and its test, as files."""

from __future__ import annotations

import sys
from pathlib import Path

from harness.releases.source_trees import FolderSourceTree
from harness.workers.release_target import ReleaseTarget

FINDING = """\
title: "Sums: the last number is left out"
severity: wrong answers
file: srt/sums.py
function: add_all
releases: ">=0.5.9"
ran: []
first: "0.5.9"
reach: "every model, default options"
what: A sum lacks its last number.
upstream: {searched: 2026-11-29, words: "sum", threads: []}
fix: {toggle: last-number, why: "all numbers count"}
evidence: ["1 + 2 is 1"]
unfix: ["./unfix zoo llama --enable other-fix"]
"""
TOGGLE = """\
id: last-number
title: A sum lacks its last number
family: sums
symptom: accuracy
devices: [cpu]
variants:
  - releases: ">=0.5.9"
    target: sglang.srt.sums:add_all
    edits:
      - fixed: return sum(numbers)
        buggy: return sum(numbers[:-1])
"""
TEST = """\
# upstream: test/registered/unit
import unittest

from sglang.srt.sums import add_all

register_cpu_ci = dict
register_cpu_ci(est_time=1)


class TestSums(unittest.TestCase):
    def test_no_number(self):
        self.assertEqual(add_all([]), 0)

    def test_all_numbers_count(self):
        self.assertEqual(add_all([1, 2]), 3)
"""
SUMS = "def add_all(numbers):\n    return sum(numbers[:-1])\n"


def write_project(root: Path, finding: str = FINDING, toggle: str = TOGGLE) -> None:
    for name, text in (
        ("findings/sums.yaml", finding),
        ("findings/upstream/test_sums.py", TEST),
        ("toggles/proposed/last-number.yaml", toggle),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def write_release(folder: Path, sums: str = SUMS, version: str = "0.5.23") -> ReleaseTarget:
    package = folder / "sglang" / "srt"
    package.mkdir(parents=True)
    (folder / "sglang" / "__init__.py").write_text("")
    (folder / "sglang" / "version.py").write_text(f'__version__ = "{version}"\n')
    (package / "sums.py").write_text(sums)
    return ReleaseTarget(version, Path(sys.executable), FolderSourceTree(folder, version))
