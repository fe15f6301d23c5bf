"""Counting: the call is inserted at the edit, and changes nothing else of the code."""

from __future__ import annotations

import ast
import textwrap
from types import CodeType
from typing import Any

import pytest

from harness.patching import live_functions
from harness.patching.instrumentation import InstrumentedModule, compile_instrumented


def compile_site(text: str, mark: str) -> tuple[InstrumentedModule, dict[str, Any], list[int]]:
    """Compile the module with one site, at the first occurrence of `mark`."""
    text = textwrap.dedent(text)
    before = text[: text.index(mark)]
    line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1)
    hits: list[int] = []
    compiled = compile_instrumented(ast.parse(text), "site.py", [(7, line, column)], hits.append)
    scope: dict[str, Any] = {"__name__": "site"}
    exec(compiled.code, scope)
    return compiled, scope, hits


def test_an_edit_in_a_functions_header_counts_calls_and_keeps_the_docstring() -> None:
    compiled, scope, hits = compile_site('def f(x=1):\n    "what it does"\n    return x\n', "1")
    assert scope["f"].__doc__ == "what it does"
    assert hits == []
    assert (scope["f"](), hits) == (1, [7])
    assert compiled.kinds == {7: "runs"}


BRANCHES = """
def f(n):
    if n == 0:
        return "zero"
    elif n == 1:
        return "one"
    try:
        return 1 // (n - 2)
    except ZeroDivisionError:
        return "two"
    finally:
        n = "done"


def g(n):
    match n:
        case 0:
            return "none"
        case _:
            return [k for k in range(n)]
"""


@pytest.mark.parametrize(
    ("mark", "function", "counted", "not_counted"),
    [
        ('return "zero"', "f", 0, 1),
        ('return "one"', "f", 1, 0),
        ("elif", "f", 1, 0),
        ('return "two"', "f", 2, 3),
        ('n = "done"', "f", 2, 0),
        ('return "none"', "g", 0, 2),
        ("return [k", "g", 2, 0),
    ],
)
def test_statements_count_by_run(mark: str, function: str, counted: int, not_counted: int) -> None:
    _, scope, hits = compile_site(BRANCHES, mark)
    scope[function](not_counted)
    assert hits == []
    scope[function](counted)
    assert hits == [7]


PARTS = """
def f(n):
    return n if n > 1 else n - 10


def g(n):
    return n == 1 and -n or (n == 2 and n * 3)


def h(n):
    pick = lambda m: m + 5
    return pick(n) if n else pick
"""


@pytest.mark.parametrize(
    ("mark", "function", "counted", "not_counted"),
    [
        ("n - 10", "f", 1, 2),
        ("- 10", "f", 1, 2),
        ("-n", "g", 1, 0),
        ("n * 3", "g", 2, 0),
        ("m + 5", "h", 1, 0),
    ],
)
def test_a_part_that_may_not_run_counts_where_it_runs(
    mark: str, function: str, counted: int, not_counted: int
) -> None:
    plain: dict[str, Any] = {}
    exec(PARTS, plain)
    _, scope, hits = compile_site(PARTS, mark)
    scope[function](not_counted)
    assert hits == []
    assert (scope[function](counted), hits) == (plain[function](counted), [7])


def test_an_edit_that_may_be_of_the_whole_expression_counts_the_statement() -> None:
    _, scope, hits = compile_site(PARTS, "n if n > 1")
    assert (scope["f"](0), hits) == (-10, [7])


def test_a_kernel_is_left_as_it_is() -> None:
    text = "def jit(f): return f\n\n\n@jit\ndef kernel(x):\n    return x + 1\n"
    compiled, scope, hits = compile_site(text, "x + 1")
    assert compiled.kinds == {7: "launches"}
    assert compiled.kernels == {"kernel": [7]}
    assert (scope["kernel"](1), hits) == (2, [])


def test_what_nobody_reads_counts_its_definition() -> None:
    compiled, _, hits = compile_site("class C:\n    'doc'\n    width: int = 8\n", "width")
    assert (compiled.kinds, hits) == ({7: "definitions"}, [7])


def test_lines_stay_where_they_are() -> None:
    _, scope, _ = compile_site(BRANCHES, 'return "two"')
    plain: dict[str, Any] = {"__name__": "site"}
    exec(compile(BRANCHES, "site.py", "exec"), plain)
    lines = {line for _, _, line in scope["f"].__code__.co_lines() if line}
    assert lines == {line for _, _, line in plain["f"].__code__.co_lines() if line}


def test_a_definition_is_found_among_those_of_its_name_without_the_others() -> None:
    text = "def one(): return 1\ndef other(): return 2\nif other:\n    def one(): return 3\n"
    site = [(7, 4, 4 + len("def one(): "))]
    hits: list[int] = []
    compiled = compile_instrumented(
        ast.parse(text), "site.py", site, hits.append, whole_module=False
    )
    assert live_functions.find_code(compiled.code, (("one", 1),)).co_firstlineno == 4
    assert [one.co_name for one in compiled.code.co_consts if isinstance(one, CodeType)] == [
        "one"
    ] * 2
