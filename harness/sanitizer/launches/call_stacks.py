"""Where the program was when it allocated, freed, launched, captured: its own frames alone."""

from __future__ import annotations

import linecache
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from harness.sanitizer.device.callers import is_own_code
from harness.sanitizer.violations.exceptions import KernelLocation
from harness.sanitizer.violations.facts import shorten_path

_MAX_FRAMES = 6
_HIDDEN_PACKAGES = ("torch", "triton")  # wherever they lie
_is_hidden: dict[str, bool] = {}


@dataclass(frozen=True, slots=True)
class StackFrame:
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.short_file}:{self.line} in {self.function}"

    @property
    def short_file(self) -> str:
        return shorten_path(self.file)


CallStack = tuple[StackFrame, ...]  # innermost first


def capture_stack() -> CallStack:
    """Return the innermost frames of the program, without torch's, Triton's and ours."""
    return tuple(
        StackFrame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        for frame, _ in zip(iterate_program_frames(), range(_MAX_FRAMES), strict=False)
    )


def iterate_program_frames() -> Iterator[FrameType]:
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        file = frame.f_code.co_filename
        hidden = _is_hidden.get(file)
        if hidden is None:
            hidden = _is_hidden[file] = _is_machinery(file)
        if not hidden:
            yield frame


def _is_machinery(file: str) -> bool:
    """Return whether a file is of what every launch goes through, and not of the program."""
    if is_own_code(file) or file.startswith("<frozen") or file.endswith("/contextlib.py"):
        return True
    found = (sys.modules.get(name) for name in _HIDDEN_PACKAGES)
    folders = (Path(package.__file__).parent for package in found if package and package.__file__)
    return any(Path(file).is_relative_to(folder) for folder in folders)


def format_stack(stack: CallStack) -> str:
    return " < ".join(map(str, stack)) or "an unknown line"


def locate_launch(kernel: str, stack: CallStack) -> KernelLocation | None:
    """Return the line that launched a kernel."""
    if not stack:
        return None
    frame = stack[0]
    text = linecache.getline(frame.file, frame.line).strip()
    return KernelLocation(kernel, frame.short_file, frame.line, text, None)
