"""Runs kernel tests where torch and Triton are: in the shared base of the managed releases."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
# The toy release; kernels and helpers that tests of several folders share.
sys.path[:0] = map(str, (HERE.parent / "toy", HERE / "checked", HERE / "compiled"))
sys.path.append(str(HERE / "ptx"))  # last, since it has files of the same names
