"""Comparing only the changed statement gives the same answer as comparing the whole function."""

from __future__ import annotations

import pytest
from small import format_code, make_faults

from harness.core.source_scopes import ModuleSource
from harness.runs.mutate import code_comparison
from harness.runs.mutate.code_comparison import OriginalFunction, compile_change
from harness.runs.mutate.function_code import CodeChange, ModuleCode

CODE = format_code(
    """
    class K:
        def f(self, n, m, mode):
            '''Every kind of statement that a fault may be in.'''
            if n < m: a = cdiv(n, m); b = cdiv(m, n)
            elif (n <= m and  # a comment
                  mode.is_decode()):
                @wraps(cdiv(n, m))
                def inner(x=cdiv(n, m)):
                    nonlocal a
                    a = min(x, n)
            else:
                for i in range(n + 1):  # as many
                    with opened(cdiv(n, m)) as file: file.zero_()
                while n < m:
                    n += 1
            if mode.is_idle():
                @wraps(n)
                def inner(): return cdiv(n, m)
            try:
                b = cdiv(n, m) \\
                    + 1
            except kinds[cdiv(n, m)]:
                b = '''
            text %s''' % cdiv(n, m)
            match cdiv(n, m):
                case 1 if cdiv(m, n): n += 1
            return [cdiv(i, m) for i in range(n)], b"e", a, "é", cdiv(n, n)
    """
)


def test_a_statement_alone_says_what_the_function_says(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = make_faults(CODE)
    assert len(alone.faults) > 20
    monkeypatch.setattr(code_comparison, "_parse_changed_statement", lambda *_: None)
    assert make_faults(CODE) == alone


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("n < m: a", "n  <(m): a", "the same code, written in another way"),
        ("n < m: a", "n <: a", "does not compile: invalid syntax"),
        ("nonlocal a", "nonlocal gone", "does not compile: no binding for nonlocal 'gone' found"),
        ("n <= m and", "(n <= m) and", "the same code, written in another way"),
        ("a = min(x, n)", "a = 1; b = 2", "takes a statement away or adds one"),
        ("range(n + 1)", "range(n + (2 - 1))", "the same bytecode"),
    ],
)
def test_why_a_change_is_none_is_said_by_both(
    before: str, after: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (function,) = ModuleCode(ModuleSource("m", "m.py", CODE)).functions
    start = CODE.index(before)
    change = CodeChange(start, start + len(before), after, "")
    spans = [function.get_span(statement) for statement in function.statements]
    index = max(n for n, (first, last) in enumerate(spans) if first <= start < last)
    assert compile_change(OriginalFunction(function), change, index).drop_reason == why
    monkeypatch.setattr(code_comparison, "_parse_changed_statement", lambda *_: None)
    assert compile_change(OriginalFunction(function), change, index).drop_reason == why
