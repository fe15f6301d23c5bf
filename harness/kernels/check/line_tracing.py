"""The lines of a kernel that ran, told to Python's own tracing.

Compiled, a kernel is no Python code any more, and whoever traces lines would see nothing of it. So
for each launch under a tracer a function of no content, whose statements stand on those lines of
that file, is called in its place.
"""

from __future__ import annotations

import ast
import bisect
import functools
import linecache
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

from harness.patching import jit_kernels

SourceFileLine = tuple[str, int]
# A line that something of a module begins with; a bracket closes what began before.
_STATEMENT_START = re.compile(r"[^\s#)\]}]")


def trace_lines(file_lines: Iterable[SourceFileLine]) -> None:
    """Run through these lines, and those that must have run beside them."""
    by_file: dict[str, set[int]] = defaultdict(set)
    for file, line in file_lines:
        by_file[file].add(line)
    for file, lines in by_file.items():
        for name, numbers in _find_executed_lines(file, frozenset(lines)):
            _make_empty_function(file, name, numbers)()


def trace_kernel(kernel: Any) -> None:
    """For a launch of which nobody knows what it came by: all lines that it could have run."""
    if sys.gettrace() is not None:
        codes = [each.fn.__code__ for each in jit_kernels.collect_called_kernels(kernel)]
        trace_lines(
            (code.co_filename, line) for code in codes for _, _, line in code.co_lines() if line
        )


@functools.lru_cache(maxsize=512)
def _find_executed_lines(
    file: str, lines: frozenset[int]
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """By function: the lines that ran, whether or not the compiler left anything of them.

    What it folded away ran all the same: the statements before one that ran, in the same block,
    and those after it up to the end of the block.
    """
    found = []
    for function in {each.lineno: each for each in _find_functions(file, lines)}.values():
        if any(function.lineno <= line <= (function.end_lineno or 0) for line in lines):
            ran = tuple(sorted(set(_expand_to_statements(function.body, lines))))
            if ran:
                found.append((function.name, ran))
    return tuple(found)


def _find_functions(file: str, lines: frozenset[int]) -> Iterator[ast.FunctionDef]:
    """Those of the top-level definitions that these lines are in, each parsed for itself."""
    text = linecache.getlines(file)
    starts = [number for number, line in enumerate(text) if _STATEMENT_START.match(line)] or [0]
    for start in sorted({starts[max(0, bisect.bisect(starts, line - 1) - 1)] for line in lines}):
        end = next((other for other in starts if other > start), len(text))
        yield from _parse_functions(file, start, end)


@functools.lru_cache(maxsize=256)
def _parse_functions(file: str, start: int, end: int) -> list[ast.FunctionDef]:
    text = linecache.getlines(file)
    try:
        tree = ast.parse("".join(text[start:end]))
        ast.increment_lineno(tree, start)
    except SyntaxError:
        try:  # it begins within a string
            tree = ast.parse("".join(text))
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
    # Above the first of them: a statement on the line of its `def` would be no event of its own.
    function.lineno, function.end_lineno = lines[0] - 1, lines[-1]
    function.body = [
        ast.Pass(lineno=line, end_lineno=line, col_offset=0, end_col_offset=4) for line in lines
    ]
    module = compile(ast.Module([function], []), file, "exec")
    [code] = (inner for inner in module.co_consts if isinstance(inner, CodeType))
    return FunctionType(code, {})  # the module's own lines would be traced, too
