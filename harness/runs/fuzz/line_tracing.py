"""Which lines of a few files run: Python's own tracing, kept away from everything else.

A kernel under check tells the lines that ran as if it were Python code. Code that a
toggle has changed says that it is of no file: its lines are counted as those of the release's file
that they stand for.
"""

from __future__ import annotations

import contextlib
import difflib
import linecache
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

FULLY_TRACED_EXAMPLES = 30  # examples of a test that are all traced, at the beginning
TRACED_FRACTION = 4  # and then one of so many
PATCHED_FILENAME = re.compile(r"<unfix .* ([\w.]+)>")

TraceFunction = Callable[[FrameType, str, Any], Any]


class ExampleTracer:
    """The lines of these files that ran so far."""

    def __init__(self, files: list[str], examples_before: int = 0) -> None:
        self.covered: dict[str, set[int]] = {file: set() for file in files}
        self._trace_functions: dict[CodeType, TraceFunction | None] = {}
        self._line_targets: dict[str, tuple[set[int], dict[int, int]] | None] = {}
        self._example_count = examples_before

    @contextlib.contextmanager
    def trace_example(self) -> Iterator[None]:
        self._example_count += 1
        if not self.covered or (
            self._example_count > FULLY_TRACED_EXAMPLES and self._example_count % TRACED_FRACTION
        ):
            yield
            return
        before = sys.gettrace()
        sys.settrace(self._trace_call)
        try:
            yield
        finally:
            sys.settrace(before)

    def _trace_call(self, frame: FrameType, event: str, argument: Any) -> TraceFunction | None:
        code = frame.f_code
        try:
            return self._trace_functions[code]
        except KeyError:
            local = self._trace_functions[code] = self._make_trace_function(code.co_filename)
            return local

    def _make_trace_function(self, file: str) -> TraceFunction | None:
        if file not in self._line_targets:
            self._line_targets[file] = self._find_line_target(file)
        place = self._line_targets[file]
        if place is None:
            return None
        lines, original = place

        def line(frame: FrameType, event: str, argument: Any) -> TraceFunction:
            if event == "line":
                lines.add(original.get(frame.f_lineno, frame.f_lineno))
            return line

        return line

    def _find_line_target(self, file: str) -> tuple[set[int], dict[int, int]] | None:
        """Where the lines of a file are counted, and as which."""
        if file in self.covered:
            return self.covered[file], {}
        module = parse_patched_module(file)
        stem = "/" + module.replace(".", "/") if module else None
        for path, lines in self.covered.items():
            if stem and path.removesuffix(".py").removesuffix("/__init__").endswith(stem):
                return lines, map_original_lines(Path(path).read_text(encoding="utf-8"), file)
        return None


def parse_patched_module(file: str) -> str | None:
    """The module that changed code is of, if it is changed code."""
    found = PATCHED_FILENAME.fullmatch(file)
    return found[1] if found else None


def map_original_lines(original_text: str, patched_filename: str) -> dict[int, int]:
    """The line of the release's own text for each line of the changed text."""
    before = original_text.splitlines()
    after = [line.rstrip("\n") for line in linecache.getlines(patched_filename)]
    found: dict[int, int] = {}
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for _, first, last, there, end in matcher.get_opcodes():
        for offset in range(end - there):
            # Of lines that were put in, the last stands for what they were put in for.
            found[there + offset + 1] = min(first + offset, max(first, last - 1)) + 1
    return found
