"""The line of a program that called into the virtual device."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

_OWN_FOLDER = f"{Path(__file__).parents[2]}/"
_CARRIED_FOLDER = f"{_OWN_FOLDER}carried/"  # in a wheel: suites and fixtures, which are programs
_BETWEEN = ("/torch/", "/triton/runtime/", "<frozen")  # what stands between a caller and us


def find_caller() -> str:
    """Return the file and line that called: not our own, torch's or Triton's."""
    for frame, line in traceback.walk_stack(sys._getframe(1)):
        file = frame.f_code.co_filename
        if not is_own_code(file) and not any(part in file for part in _BETWEEN):
            return f"{file}:{line}"
    return "an unknown line"


def is_own_code(file: str) -> bool:
    """Return whether a file is machinery of ours, which a program's launches go through."""
    return file.startswith(_OWN_FOLDER) and not file.startswith(_CARRIED_FOLDER)
