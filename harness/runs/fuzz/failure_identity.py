"""The identity of a failure: exception type, innermost line and kernel.

Messages do not count: their indices and addresses differ from example to example.
"""

from __future__ import annotations

import linecache
import os
import sys
import traceback
from pathlib import Path
from types import TracebackType

from harness.core import paths
from harness.store.fuzz.values import FoundFailure
from harness.workers.line_tracer import parse_patched_module


def failure_from_error(error: BaseException, test_file: Path) -> FoundFailure:
    """Make a failure without an example from an error."""
    place = getattr(error, "place", None)  # the place in a checked kernel's report
    kernel = str(getattr(place, "kernel", "") or "")
    where = f"{_shorten_path(place.file)}: {place.text.strip()}" if place is not None else ""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return FoundFailure(
        error=type(error).__name__,
        where=where or describe_innermost_frame(error.__traceback__, test_file),
        kind=kernel,
        headline=first or type(error).__name__,
        arguments=[],
        blob="",
    )


def describe_innermost_frame(trace: TracebackType | None, test_file: Path) -> str:
    """Return file, function and code of the innermost frame in SGLang or in a suite."""
    folders = _list_own_folders(test_file)
    innermost = ""
    for frame, line in traceback.walk_tb(trace):
        file = frame.f_code.co_filename
        if parse_patched_module(file) or os.path.realpath(file).startswith(folders):
            text = linecache.getline(file, line).strip()
            innermost = f"{_shorten_path(file)}:{frame.f_code.co_name}: {text}"
    return innermost


def _list_own_folders(test_file: Path) -> tuple[str, ...]:
    package = sys.modules.get("sglang")
    folders = [os.path.dirname(os.path.realpath(file)) for file in _list_package_files(package)]
    folders += [str(paths.project_folder() / name) for name in ("suites", "fixtures")]
    folders.append(str(test_file.resolve().parent))
    return tuple(folder + os.sep for folder in folders)


def _list_package_files(package: object) -> list[str]:
    file = getattr(package, "__file__", None)
    return [file] if file else [f"{each}/x" for each in getattr(package, "__path__", ())]


def _shorten_path(file: str) -> str:
    """Return a file's path inside the package or the project."""
    module = parse_patched_module(file)
    if module:
        return module.replace(".", "/") + ".py"
    for mark in ("/sglang/", "/suites/", "/fixtures/"):
        _, found, tail = file.rpartition(mark)
        if found:
            return f"{mark.strip('/')}/{tail}"
    return os.path.basename(file)
