"""The line of a program that called into the virtual device."""

from __future__ import annotations

import sys
from pathlib import Path

_OWN_FOLDER = str(Path(__file__).parents[1])  # the checks of kernels call operators, too
_BETWEEN = ("/torch/", "/triton/runtime/", "<frozen")  # what stands between a caller and us


def find_caller() -> str:
    """Return the file and line that called: not our own, torch's or Triton's."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_OWN_FOLDER) and not any(part in file for part in _BETWEEN):
            return f"{file}:{frame.f_lineno}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return "an unknown line"
