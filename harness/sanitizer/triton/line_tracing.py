"""Line events of Python's tracing (`sys.settrace`, coverage) for kernels.

A compiled kernel runs no Python code, so a tracer sees none of its lines. After each launch under a
tracer this module calls a function of `pass` statements that claim the kernel's file and the lines
that ran. Example: lines 5 and 7 of kernels.py ran; the function has two statements, compiled with
the file name kernels.py and the line numbers 5 and 7.
"""

from __future__ import annotations

import ast
import bisect
import functools
import io
import linecache
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any

from harness.sanitizer.ir.graph import FileLine
from harness.sanitizer.triton import jit_kernels
from harness.sanitizer.violations.facts import shorten_path

# The first line of a top-level statement; a closing bracket belongs to an earlier one.
_STATEMENT_START = re.compile(r"[^\s#)\]}]")


def trace_lines(file_lines: Iterable[FileLine]) -> None:
    """Send events for these lines, and for those that must have run with them."""
    by_file: dict[str, set[int]] = defaultdict(set)
    for file, line in file_lines:
        by_file[file].add(line)
    for file, lines in by_file.items():
        text = "".join(linecache.getlines(file))  # patched code changes it
        for name, numbers in find_executed_lines(text, frozenset(lines)):
            _make_empty_function(file, name, numbers)()


def find_caller() -> str:
    """Return the file and line that launches a kernel, outside of Triton, torch and harness."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not any(
            folder in file for folder in ("/triton/", "/torch/", "/harness/sanitizer/", "<")
        ):
            return f"{shorten_path(file)}:{frame.f_lineno}"
        frame = frame.f_back
    return "an unknown line"


def trace_kernel(kernel: Any) -> None:
    """Send events for all lines of a kernel: a GPU does not report which of them ran."""
    if sys.gettrace() is not None:
        codes = [each.fn.__code__ for each in jit_kernels.collect_called_kernels(kernel)]
        trace_lines(
            (code.co_filename, line) for code in codes for _, _, line in code.co_lines() if line
        )


@functools.lru_cache(maxsize=512)
def find_executed_lines(
    text: str, lines: frozenset[int]
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Find the lines that ran, by function, with those that the compiler folded away.

    If one statement of a block ran, all of its statements did.
    """
    executed = []
    for function in {each.lineno: each for each in find_functions(text, lines)}.values():
        if any(function.lineno <= line <= (function.end_lineno or 0) for line in lines):
            ran = tuple(sorted(set(_expand_to_statements(function.body, lines))))
            if ran:
                executed.append((function.name, ran))
    return tuple(executed)


def find_functions(text: str, lines: frozenset[int]) -> Iterator[ast.FunctionDef]:
    """Yield the functions of the top-level definitions at these lines, each parsed by itself."""
    starts = _find_definition_starts(text)
    for start in sorted({starts[max(0, bisect.bisect(starts, line - 1) - 1)] for line in lines}):
        yield from _parse_functions(text, start, next((s for s in starts if s > start), None))


@functools.lru_cache(maxsize=256)
def _find_definition_starts(text: str) -> list[int]:
    lines = io.StringIO(text).readlines()
    return [number for number, line in enumerate(lines) if _STATEMENT_START.match(line)] or [0]


@functools.lru_cache(maxsize=256)
def _parse_functions(text: str, start: int, end: int | None) -> list[ast.FunctionDef]:
    lines = io.StringIO(text).readlines()
    try:
        tree = ast.parse("".join(lines[start:end]))
        ast.increment_lineno(tree, start)
    except SyntaxError:
        try:  # the definition begins inside a string
            tree = ast.parse(text)
        except SyntaxError:
            return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def _expand_to_statements(body: list[ast.stmt], lines: frozenset[int]) -> Iterator[int]:
    if not any(
        statement.lineno <= line <= _get_last_line(statement)
        for statement in body
        for line in lines
    ):
        return
    for statement in body:
        inner = [
            block
            for name in ("body", "orelse")
            if isinstance(block := getattr(statement, name, None), list) and block
        ]
        if not inner:
            yield from range(statement.lineno, _get_last_line(statement) + 1)
            continue
        yield from range(statement.lineno, inner[0][0].lineno)
        for block in inner:
            yield from _expand_to_statements(block, lines)


def _get_last_line(statement: ast.stmt) -> int:
    return statement.end_lineno or statement.lineno


@functools.lru_cache(maxsize=512)
def _make_empty_function(file: str, name: str, lines: tuple[int, ...]) -> Callable[[], None]:
    function = ast.parse(f"def {name}(): pass").body[0]
    assert isinstance(function, ast.FunctionDef)
    # The `def` is one line above: a statement on its line would give no event.
    function.lineno, function.end_lineno = lines[0] - 1, lines[-1]
    function.body = [
        ast.Pass(lineno=line, end_lineno=line, col_offset=0, end_col_offset=4) for line in lines
    ]
    module = compile(ast.Module([function], []), file, "exec")
    [code] = (inner for inner in module.co_consts if isinstance(inner, CodeType))
    return FunctionType(code, {})  # running the module would send events for its lines
