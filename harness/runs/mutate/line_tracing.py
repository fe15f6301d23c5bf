"""Which lines of a release a guard runs: all its files at once, so it is recorded but once.

A line that ran is known; a function all of whose lines have run is traced no longer. Kernels under
check and code that a toggle has changed are counted as the release's own lines.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from harness.runs.fuzz.line_tracing import map_original_lines, parse_patched_module

LineTraceFunction = Callable[[FrameType, str, Any], Any]


class GuardLineTracer:
    """The lines of a release's modules that ran inside functions so far."""

    def __init__(self, root: Path) -> None:
        self.root = root  # the folder that holds the package
        self._package_prefix = f"{root / 'sglang'}/"
        self.lines: dict[str, set[int]] = {}
        # By identity: equal code of two files is not the same. It is held, so an id stays its own.
        self._unseen_lines: dict[int, tuple[CodeType, set[int]]] = {}
        self._original_line_numbers: dict[str, dict[int, int]] = {}

    @contextlib.contextmanager
    def trace_lines(self) -> Iterator[None]:
        before = sys.gettrace()
        threading.settrace(self._on_call)
        sys.settrace(self._on_call)
        try:
            yield
        finally:
            sys.settrace(before)
            threading.settrace(None)

    def _on_call(self, frame: FrameType, event: str, argument: Any) -> LineTraceFunction | None:
        code = frame.f_code
        try:
            left = self._unseen_lines[id(code)][1]
        except KeyError:
            left = self._list_unseen_lines(code)
            self._unseen_lines[id(code)] = code, left
        if not left:
            return None
        lines, numbers = self._get_line_records(code.co_filename)

        def line(frame: FrameType, event: str, argument: Any) -> LineTraceFunction:
            if event == "line":
                number = frame.f_lineno
                if number in left:
                    left.discard(number)
                    lines.add(numbers.get(number, number))
                    frame.f_trace_lines = bool(left)
            return line

        return line

    def _list_unseen_lines(self, code: CodeType) -> set[int]:
        """What is still to be seen of a function; nothing if it is not the release's."""
        if not code.co_flags & inspect.CO_OPTIMIZED or self._find_module(code.co_filename) is None:
            return set()
        return {line for _, _, line in code.co_lines() if line}

    def _get_line_records(self, file: str) -> tuple[set[int], dict[int, int]]:
        module = self._find_module(file)
        assert module is not None
        if parse_patched_module(file) is not None and file not in self._original_line_numbers:
            text = self._find_module_file(module).read_text(encoding="utf-8")
            self._original_line_numbers[file] = map_original_lines(text, file)
        return self.lines.setdefault(module, set()), self._original_line_numbers.get(file, {})

    def _find_module(self, file: str) -> str | None:
        if file.startswith(self._package_prefix):
            name = file.removeprefix(f"{self.root}/").removesuffix(".py")
            return name.replace("/", ".").removesuffix(".__init__")
        changed = parse_patched_module(file)
        return changed if changed and changed.partition(".")[0] == "sglang" else None

    def _find_module_file(self, module: str) -> Path:
        stem = self.root / module.replace(".", "/")
        file = stem.with_name(f"{stem.name}.py")
        return file if file.is_file() else stem / "__init__.py"
