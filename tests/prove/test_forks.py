"""A test that forks and continues in both processes does not fill the machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from calling import PATIENCE_SECONDS

from harness.core import processes

# Seven forks that all continue are 128 processes, if nothing stops them.
FORKS = """
import os, sys
from harness.core import processes
processes.adopt_orphans()
processes.limit_forks(10)
here = os.getpid()
codes = []
for _ in range(7):
    if os.fork():
        codes.append(os.waitstatus_to_exitcode(os.wait()[1]))
with open(sys.argv[1], "a") as ends:
    print(max(codes, default=0), file=ends)
"""


def test_children_beyond_the_forks_that_are_allowed_end_as_they_are_born(tmp_path: Path) -> None:
    ends = tmp_path / "ends"
    subprocess.run([sys.executable, "-c", FORKS, str(ends)], check=True, timeout=PATIENCE_SECONDS)
    codes = ends.read_text().split()
    assert 1 < len(codes) <= 11  # itself, and ten children
    assert str(processes.TOO_MANY_FORKS_EXIT_CODE) in codes
