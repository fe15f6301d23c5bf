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

ALL_OF = 30  # examples of a test that are all traced, at the beginning
EVERY = 4  # and then one of so many
PATCHED = re.compile(r"<unfix .* ([\w.]+)>")

Traced = Callable[[FrameType, str, Any], Any]


class Tracer:
    """The lines of these files that ran so far."""

    def __init__(self, files: list[str], seen: int = 0) -> None:
        self.covered: dict[str, set[int]] = {file: set() for file in files}
        self._local: dict[CodeType, Traced | None] = {}
        self._places: dict[str, tuple[set[int], dict[int, int]] | None] = {}
        self._seen = seen

    @contextlib.contextmanager
    def example(self) -> Iterator[None]:
        self._seen += 1
        if not self.covered or (self._seen > ALL_OF and self._seen % EVERY):
            yield
            return
        before = sys.gettrace()
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(before)

    def _called(self, frame: FrameType, event: str, argument: Any) -> Traced | None:
        code = frame.f_code
        try:
            return self._local[code]
        except KeyError:
            local = self._local[code] = self._local_for(code.co_filename)
            return local

    def _local_for(self, file: str) -> Traced | None:
        if file not in self._places:
            self._places[file] = self._place(file)
        place = self._places[file]
        if place is None:
            return None
        lines, original = place

        def line(frame: FrameType, event: str, argument: Any) -> Traced:
            if event == "line":
                lines.add(original.get(frame.f_lineno, frame.f_lineno))
            return line

        return line

    def _place(self, file: str) -> tuple[set[int], dict[int, int]] | None:
        """Where the lines of a file are counted, and as which."""
        if file in self.covered:
            return self.covered[file], {}
        module = module_of(file)
        stem = "/" + module.replace(".", "/") if module else None
        for path, lines in self.covered.items():
            if stem and path.removesuffix(".py").removesuffix("/__init__").endswith(stem):
                return lines, original_lines(Path(path).read_text(encoding="utf-8"), file)
        return None


def module_of(file: str) -> str | None:
    """The module that changed code is of, if it is changed code."""
    found = PATCHED.fullmatch(file)
    return found[1] if found else None


def original_lines(text: str, patched: str) -> dict[int, int]:
    """The line of the release's own text for each line of the changed text."""
    before = text.splitlines()
    after = [line.rstrip("\n") for line in linecache.getlines(patched)]
    found: dict[int, int] = {}
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for _, first, last, there, end in matcher.get_opcodes():
        for offset in range(end - there):
            # Of lines that were put in, the last stands for what they were put in for.
            found[there + offset + 1] = min(first + offset, max(first, last - 1)) + 1
    return found
