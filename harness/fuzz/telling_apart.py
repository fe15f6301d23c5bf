"""Telling failures apart: by the exception, by where it came from, by what kind of report it is.

Messages are no help: they hold indices and addresses, and each example has its own.
"""

from __future__ import annotations

import linecache
import os
import sys
import traceback
from pathlib import Path
from types import TracebackType

from harness import paths
from harness.fuzz.tracing import module_of
from harness.fuzz.values import Found


def told(error: BaseException, test_file: Path) -> Found:
    """A failure without its example."""
    place = getattr(error, "place", None)  # of a checked kernel's report
    kernel = str(getattr(place, "kernel", "") or "")
    where = f"{_short(place.file)}: {place.text.strip()}" if place is not None else ""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return Found(
        error=type(error).__name__,
        where=where or innermost(error.__traceback__, test_file),
        kind=kernel,
        headline=first or type(error).__name__,
        arguments=[],
        blob="",
    )


def innermost(trace: TracebackType | None, test_file: Path) -> str:
    """The last frame that is SGLang's or a suite's, as its file, function and line of code."""
    ours = _places(test_file)
    found = ""
    for frame, line in traceback.walk_tb(trace):
        file = frame.f_code.co_filename
        if module_of(file) or os.path.realpath(file).startswith(ours):
            text = linecache.getline(file, line).strip()
            found = f"{_short(file)}:{frame.f_code.co_name}: {text}"
    return found


def _places(test_file: Path) -> tuple[str, ...]:
    package = sys.modules.get("sglang")
    folders = [os.path.dirname(os.path.realpath(file)) for file in _files(package)]
    folders += [str(paths.project() / name) for name in ("suites", "fixtures")]
    folders.append(str(test_file.resolve().parent))
    return tuple(folder + os.sep for folder in folders)


def _files(package: object) -> list[str]:
    file = getattr(package, "__file__", None)
    return [file] if file else [f"{each}/x" for each in getattr(package, "__path__", ())]


def _short(file: str) -> str:
    """A file's name from the package or the project on."""
    module = module_of(file)
    if module:
        return module.replace(".", "/") + ".py"
    for mark in ("/sglang/", "/suites/", "/fixtures/"):
        _, found, tail = file.rpartition(mark)
        if found:
            return f"{mark.strip('/')}/{tail}"
    return os.path.basename(file)
