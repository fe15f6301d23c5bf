"""The lines of kernels that ran, as a tracer sees them."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from typing import Any

import kernels_to_check
from checks import check_on_cpu, make_numbers
from kernels_to_check import stored_and_counted

from harness.sanitizer.triton import line_tracing
from harness.sanitizer.triton.line_tracing import find_executed_lines as statements
from harness.sanitizer.triton.line_tracing import trace_kernel


def test_a_tracer_sees_the_lines_that_ran() -> None:
    traced_lines: set[int] = set()

    def trace_call(frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename == kernels_to_check.__file__ and event == "line":
            traced_lines.add(frame.f_lineno - first)
        return trace_call

    first = stored_and_counted.starting_line_number
    for first_program, lines in ((0, {2, 3}), (5, {2, 5})):
        with check_on_cpu():
            traced_lines.clear()
            sys.settrace(trace_call)
            stored_and_counted[(1,)](make_numbers(1), first_program)
            sys.settrace(None)
        assert traced_lines == lines
    # A GPU does not report which branch ran: it may have been any.
    traced_lines.clear()
    trace_kernel(stored_and_counted)
    assert not traced_lines
    sys.settrace(trace_call)
    trace_kernel(stored_and_counted)
    sys.settrace(None)
    assert traced_lines == {2, 3, 5}


def test_a_line_inside_a_string_starts_no_function() -> None:
    text = (
        "@jit\ndef f(\n    x,\n):\n    y = x\n    asm = '''\nmov {y}\n'''\n    return y\n\n\n"
        "def g(x):\n    if x:\n        return 1\n    return 2\n"
    )
    assert statements(text, frozenset({5})) == (("f", (5, 6, 7, 8, 9)),)
    assert statements(text, frozenset({8})) == (("f", (5, 6, 7, 8, 9)),)
    assert statements(text, frozenset({14})) == (("g", (13, 14, 15)),)
    assert statements(text, frozenset({2, 15})) == (("g", (13, 15)),)


def test_a_file_whose_text_changes_is_read_again(tmp_path: Path) -> None:
    """A live toggle changes the lines of a module under the name of its file."""
    file = str(tmp_path / "kernels.py")
    traced_lines = []

    def trace(frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename == file and event == "line":
            traced_lines.append(frame.f_lineno)
        return trace

    for text, lines in (
        ("def f(x):\n    y = x\n    z = x\n", [2, 3]),
        ("def f(x):\n    y = x\n\n", [2]),
    ):
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        traced_lines.clear()
        sys.settrace(trace)
        line_tracing.trace_lines([(file, 2)])
        sys.settrace(None)
        assert traced_lines == lines
