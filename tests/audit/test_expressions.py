"""A caller's arithmetic keeps its meaning when it is written out."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from harness.runs.audit.expressions import evaluate_expression, render_expression

VALUES = {"rows": 7, "columns": 3, "page": 64}
ARITHMETIC = st.recursive(
    st.sampled_from([*VALUES, 1, 2, 5]),
    lambda part: st.tuples(st.sampled_from(["+", "-", "*", "//", "%", "min"]), part, part),
    max_leaves=6,
)


@given(ARITHMETIC)
@example(("*", "rows", ("*", ("//", "rows", "columns"), "rows")))
@example(("*", "rows", ("*", ("*", ("%", "rows", 5), 2), "rows")))
def test_written_arithmetic_is_the_same_number(expression: Any) -> None:
    try:
        number = eval(render_expression(expression), {"min": min}, dict(VALUES))
    except ZeroDivisionError:
        return
    assert evaluate_expression(expression, VALUES.__getitem__) == number


def test_brackets_stand_where_they_are_needed_and_nowhere_else() -> None:
    assert render_expression(("*", ("-", "rows", 1), 64)) == "(rows - 1) * 64"
    assert render_expression(("-", ("-", "rows", 1), ("-", "page", 1))) == "rows - 1 - (page - 1)"
    assert render_expression(("+", "rows", ("+", ("*", "rows", 2), 1))) == "rows + rows * 2 + 1"
