"""An edit transferred by tokens, and the cases in which that is refused."""

from __future__ import annotations

import ast
import textwrap

import pytest
from followed import load_trees

from harness.fixes.adopt.code_tokens import NEWLINE, PortError, render_tokens, tokenize_code
from harness.fixes.adopt.token_merge import merge_edit

BEFORE = """
def f(rows, topk):
    width = rows * topk
    a = first(width)
    return second(a, width)
"""
AFTER = BEFORE.replace("rows * topk", "rows")


def carry_edit(target: str, before: str = BEFORE, after: str = AFTER) -> str:
    texts = [tokenize_code(text.strip(), "") for text in (before, after, target)]
    return render_tokens(merge_edit(*texts).tokens, "")


def are_same(one: str, other: str) -> bool:
    return ast.dump(ast.parse(one)) == ast.dump(ast.parse(other))


def test_tokens_are_code_again() -> None:
    module = "sglang.srt.layers.attention.flashinfer_backend"
    source = load_trees()[-1].read(module)
    assert source is not None
    for name in source.iterate_definition_names():
        for scope in source.find_scopes(name):
            text = scope.text()
            column = scope.range().start.column
            again = render_tokens(tokenize_code(text, " " * column), " " * column)
            dedented = textwrap.dedent(" " * column + again)
            assert are_same(dedented, textwrap.dedent(" " * column + text)), name


@pytest.mark.parametrize(
    "target",
    [
        BEFORE.replace("second(a, width)", "second(a, width, True)"),
        BEFORE.replace("def f(rows, topk)", "def f(rows, topk, *, stream=None)"),
        BEFORE.replace("rows * topk", "max_rows * topk").replace("(rows,", "(max_rows,"),
        BEFORE.replace("    a = ", "    check(topk)\n    a = "),
    ],
)
def test_an_edit_follows_what_moved_around_it(target: str) -> None:
    result = carry_edit(target)
    assert are_same(result, target.replace(" * topk\n", "\n"))


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (AFTER, "does not stand there"),
        (BEFORE.replace("rows * topk", "size_of(rows, topk)"), "."),
        ("def f(x):\n    return g(x)\n", "."),
    ],
)
def test_an_edit_is_refused_where_it_has_no_place(target: str, why: str) -> None:
    with pytest.raises(PortError, match=why):
        carry_edit(target)


def test_what_stands_there_already_is_not_put_in_twice() -> None:
    target = AFTER.replace("width = rows\n", "width = rows\n    width = width * topk\n")
    with pytest.raises(PortError):
        carry_edit(target, AFTER, BEFORE)


def test_the_comma_that_ends_a_list_is_no_difference_and_that_of_a_tuple_is() -> None:
    def plain(text: str) -> list[str]:
        return [token.text for token in tokenize_code(text, "")]

    assert plain("f(a,\n  b,\n)") == plain("f(a, b)")
    assert plain("x = (a,)") != plain("x = (a)")
    assert NEWLINE in plain("x = 1")
