"""The line of a program that called into the virtual device."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

_OWN_FOLDER = str(Path(__file__).parents[2])  # the checks of kernels call operators, too
_BETWEEN = ("/torch/", "/triton/runtime/", "<frozen")  # what stands between a caller and us


def find_caller() -> str:
    """Return the file and line that called: not our own, torch's or Triton's."""
    for frame, line in traceback.walk_stack(sys._getframe(1)):
        file = frame.f_code.co_filename
        if not file.startswith(_OWN_FOLDER) and not any(part in file for part in _BETWEEN):
            return f"{file}:{line}"
    return "an unknown line"
