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

from harness.fuzz.tracing import module_of, original_lines

Traced = Callable[[FrameType, str, Any], Any]


class Tracer:
    """The lines of a release's modules that ran inside functions so far."""

    def __init__(self, root: Path) -> None:
        self.root = root  # the folder that holds the package
        self._package = f"{root / 'sglang'}/"
        self.lines: dict[str, set[int]] = {}
        # By identity: equal code of two files is not the same. It is held, so an id stays its own.
        self._left: dict[int, tuple[CodeType, set[int]]] = {}
        self._originals: dict[str, dict[int, int]] = {}

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        before = sys.gettrace()
        threading.settrace(self._called)
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(before)
            threading.settrace(None)

    def _called(self, frame: FrameType, event: str, argument: Any) -> Traced | None:
        code = frame.f_code
        try:
            left = self._left[id(code)][1]
        except KeyError:
            left = self._lines_of(code)
            self._left[id(code)] = code, left
        if not left:
            return None
        lines, numbers = self._place(code.co_filename)

        def line(frame: FrameType, event: str, argument: Any) -> Traced:
            if event == "line":
                number = frame.f_lineno
                if number in left:
                    left.discard(number)
                    lines.add(numbers.get(number, number))
                    frame.f_trace_lines = bool(left)
            return line

        return line

    def _lines_of(self, code: CodeType) -> set[int]:
        """What is still to be seen of a function; nothing if it is not the release's."""
        if not code.co_flags & inspect.CO_OPTIMIZED or self._module(code.co_filename) is None:
            return set()
        return {line for _, _, line in code.co_lines() if line}

    def _place(self, file: str) -> tuple[set[int], dict[int, int]]:
        module = self._module(file)
        assert module is not None
        if module_of(file) is not None and file not in self._originals:
            text = self._file(module).read_text(encoding="utf-8")
            self._originals[file] = original_lines(text, file)
        return self.lines.setdefault(module, set()), self._originals.get(file, {})

    def _module(self, file: str) -> str | None:
        if file.startswith(self._package):
            name = file.removeprefix(f"{self.root}/").removesuffix(".py")
            return name.replace("/", ".").removesuffix(".__init__")
        changed = module_of(file)
        return changed if changed and changed.partition(".")[0] == "sglang" else None

    def _file(self, module: str) -> Path:
        stem = self.root / module.replace(".", "/")
        file = stem.with_name(f"{stem.name}.py")
        return file if file.is_file() else stem / "__init__.py"
