"""Records the lines of a release that run, by Python's tracing, for `fuzz` and `mutate`.

Lines are counted as those of the release's own files. Patched code has a file name of its own
(`<unfix revert 27338 sglang.srt.layers.a>`); its lines count as the lines that they replace. For
example, where a patch replaces line 7 by three lines, all three count as line 7. Kernels
under check report their lines to the tracer as if they were Python code.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
import linecache
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_PATCHED_FILENAME = re.compile(r"<unfix .* ([\w.]+)>")
TRACED_VARIABLE = "UNFIX_TRACED_FILES"  # paths from the package on, with os.pathsep between
TraceFunction = Callable[[FrameType, str, Any], Any]
# The release's file for which a file's lines count; None if they do not count.
FileSelector = Callable[[str], Path | None]


class LineTracer:
    """A tracer that records the lines inside functions, by file, and traces each until it runs."""

    def __init__(self, select_file: FileSelector) -> None:
        self.lines: dict[Path, set[int]] = {}
        self._select_file = select_file
        # By identity, since two files can have equal code. The reference to the code prevents
        # another code object from getting its id.
        self._unseen_lines: dict[int, tuple[CodeType, set[int]]] = {}
        self._line_records: dict[str, tuple[set[int], dict[int, int]] | None] = {}

    @contextlib.contextmanager
    def trace(self) -> Iterator[None]:
        before = sys.gettrace()
        threading.settrace(self._on_call)
        sys.settrace(self._on_call)
        try:
            yield
        finally:
            sys.settrace(before)
            threading.settrace(None)

    def _on_call(self, frame: FrameType, event: str, argument: Any) -> TraceFunction | None:
        code = frame.f_code
        if id(code) not in self._unseen_lines:
            self._unseen_lines[id(code)] = code, self._list_lines(code)
        unseen = self._unseen_lines[id(code)][1]
        records = self._find_records(code.co_filename) if unseen else None
        if records is None:
            return None
        lines, original_numbers = records

        def trace_line(frame: FrameType, event: str, argument: Any) -> TraceFunction:
            number = frame.f_lineno
            if event == "line" and number in unseen:
                unseen.discard(number)
                lines.add(original_numbers.get(number, number))
                frame.f_trace_lines = bool(unseen)
            return trace_line

        return trace_line

    def _list_lines(self, code: CodeType) -> set[int]:
        if not code.co_flags & inspect.CO_OPTIMIZED or self._find_records(code.co_filename) is None:
            return set()
        return {line for _, _, line in code.co_lines() if line}

    def _find_records(self, filename: str) -> tuple[set[int], dict[int, int]] | None:
        """Return the set for a file's lines, and the line numbers that they count as."""
        if filename not in self._line_records:
            file = self._select_file(filename)
            numbers = {}
            if file is not None and parse_patched_module(filename) is not None:
                numbers = map_original_lines(file.read_text(encoding="utf-8"), filename)
            lines = self.lines.setdefault(file, set()) if file is not None else None
            self._line_records[filename] = None if lines is None else (lines, numbers)
        return self._line_records[filename]


@contextlib.contextmanager
def trace_chosen_files() -> Iterator[dict[str, list[int]]]:
    """Fill a dictionary with the lines that run of the files that `UNFIX_TRACED_FILES` names.

    Only these are traced: of a change, so that its lines cost little. Where there are none, nothing
    is traced.
    """
    lines: dict[str, list[int]] = {}
    names = os.environ.get(TRACED_VARIABLE, "").split(os.pathsep)
    package = Path(sys.modules["sglang"].__file__ or "").parent.parent if any(names) else Path()
    files = [str(package / name) for name in names if name]
    if not files:
        yield lines
        return
    tracer = LineTracer(select_listed_files(files))
    with tracer.trace():
        yield lines
    for file, numbers in tracer.lines.items():
        if numbers:
            module = ".".join(file.relative_to(package).with_suffix("").parts)
            lines[module.removesuffix(".__init__")] = sorted(numbers)


def select_package_files(root: Path) -> FileSelector:
    """Return a selector of all files of the SGLang package in a folder."""
    prefix = f"{root / 'sglang'}/"

    def select(filename: str) -> Path | None:
        if filename.startswith(prefix):
            return Path(filename)
        module = parse_patched_module(filename)
        if module is None or module.partition(".")[0] != "sglang":
            return None
        stem = root / module.replace(".", "/")
        file = stem.with_name(f"{stem.name}.py")
        return file if file.is_file() else stem / "__init__.py"

    return select


def select_listed_files(files: list[str]) -> FileSelector:
    """Return a selector of only these files."""
    by_module = {path.removesuffix(".py").removesuffix("/__init__"): path for path in files}

    def select(filename: str) -> Path | None:
        if filename in files:
            return Path(filename)
        module = parse_patched_module(filename)
        ending = f"/{module.replace('.', '/')}" if module else None
        for stem, path in by_module.items():
            if ending and stem.endswith(ending):
                return Path(path)
        return None

    return select


def parse_patched_module(filename: str) -> str | None:
    """Return the module of patched code from its file name; None for any other file."""
    match = _PATCHED_FILENAME.fullmatch(filename)
    return match[1] if match else None


def map_original_lines(original_text: str, patched_filename: str) -> dict[int, int]:
    """Map each line of the patched text to a line of the release's own text."""
    before = original_text.splitlines()
    after = [line.rstrip("\n") for line in linecache.getlines(patched_filename)]
    numbers: dict[int, int] = {}
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for _, first, last, after_first, after_last in matcher.get_opcodes():
        for offset in range(after_last - after_first):
            # Inserted lines beyond the replaced ones count as the last replaced line.
            numbers[after_first + offset + 1] = min(first + offset, max(first, last - 1)) + 1
    return numbers
