"""A property: a toggle changes its own code only, and reverting it restores the module."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from itertools import chain

from hypothesis import given, note, settings
from hypothesis import strategies as st
from memory import enable_toggle, make_edit_toggle, revert_toggle

# A line break inside a string, which this file's own indenting leaves alone.
INSIDE = "\1"


@dataclass(frozen=True)
class Shape:
    """A toggle's two forms; a metavariable is drawn as code of the kind that its name begins with:
    E an expression, L a list of arguments, S statements."""

    fixed: str
    buggy: str


EXPRESSIONS = (
    Shape("good($E1, $E2)", "bad($E2, $E1)"),
    Shape("good(first, $$$L1)", "bad(first, $$$L1)"),
    Shape("good($$$L1)", "bad(0, $$$L1, 1)"),
    Shape("(good($E1), $E2 + 1)", "(bad($E1), $E2 + 1)"),
    Shape("good(\n    $E1,\n    key=$E2,\n)", "good($E1, other=[$E2])"),
)
STATEMENTS = (
    Shape("value = good($E1)", "if flag:\n    value = bad($E1)\nelse:\n    value = None"),
    Shape("start($E1)\ngood()\nfinish($E1)", "start($E1)\nfinish($E1)"),
    Shape("start($E1)\ngood($E2)\nfinish($$$L1)", "finish($$$L1)\nbad($E2)\nstart($E1)"),
    Shape("if good:\n    $$$S1", "if bad:\n    $$$S1"),
    Shape("if good:\n    $$$S1\nelse:\n    $$$S2", "if bad:\n    $$$S2\nelse:\n    $$$S1"),
    Shape("while good($E1): $$$S1", "while bad:\n    while bad($E1):\n        $$$S1"),
    Shape("try:\n    $$$S1\nexcept Good:\n    pass", "try:\n    $$$S1\nexcept Bad:\n    raise"),
    Shape("def good(one, $$$L9):\n    $$$S1", "def bad(two, $$$L9):\n    $$$S1"),
)

atoms = st.sampled_from(
    [
        "a",
        "größe",
        "self.x",
        "3",
        "'é😀'",
        '"#"',
        f'"""one{INSIDE}two{INSIDE}    three"""',
        "x[i, :]",
    ]
)
expressions = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.builds("call({},\n  {},\n)".format, inner, inner),
        st.builds("({} + {})".format, inner, inner),
        st.builds("[{}, {}]".format, inner, inner),
        st.builds("{{'k': {}}}".format, inner),
        st.builds("f'{{{}}}!'".format, st.sampled_from(["a", "b.c"])),
        st.builds("(lambda q: {})".format, inner),
        st.builds("({} if b else {})".format, inner, inner),
    ),
    max_leaves=4,
)
arguments = st.lists(st.one_of(expressions, st.builds("*{}".format, st.just("rest"))), max_size=3)
parameters = st.lists(st.sampled_from("pqr"), max_size=3, unique=True)


def indent_lines(lines: list[str]) -> list[str]:
    return [f"    {part}" if part else part for line in lines for part in line.split("\n")]


def draw_block(head: str) -> st.SearchStrategy[list[str]]:
    return st.deferred(lambda: statements).map(lambda body: [head, *indent_lines(body)])


simple = st.one_of(
    st.builds("noise = {}".format, expressions),
    st.builds("noise({})  # é".format, expressions),
    st.sampled_from(["pass", "# a comment", "", "raise", "a; b()", f'"""doc{INSIDE}string"""']),
).map(lambda line: [line])
statement = st.one_of(
    simple,
    simple,
    st.sampled_from(
        ["if cond:", "for i in r:", "with w as o:", "while 0:", "def nested(a):", "class N:"]
    ).flatmap(draw_block),
)
statements = st.lists(statement, max_size=3).map(lambda parts: [*chain(*parts), "end()"])


@dataclass(frozen=True)
class RoundTrip:
    shape: Shape
    fixed: str
    buggy: str
    target: str


def render_form(form: str, values: dict[str, list[str]]) -> list[str]:
    """Fill code into a form's metavariables, without the code under test."""
    lines: list[str] = []
    for line in form.replace(": $$$S1", ":\n    $$$S1").split("\n"):
        name = line.strip().removeprefix("$$$")
        if name in values and name.startswith("S"):
            inner = line[: len(line) - len(line.lstrip())]
            lines += [inner + part if part else part for part in values[name]]
            continue
        for key, value in values.items():
            if key.startswith("L"):
                line = line.replace(f"$$${key}", ", ".join(value))
            if key.startswith("E"):
                line = line.replace(f"${key}", value[0])
        lines += line.replace("(, ", "(").replace(", , ", ", ").split("\n")
    return lines


@st.composite
def cases(draw: st.DrawFn) -> RoundTrip:
    expression = draw(st.booleans())
    shape = draw(st.sampled_from(EXPRESSIONS if expression else STATEMENTS))
    values = {
        **{name: [draw(expressions)] for name in ("E1", "E2")},
        "L1": draw(arguments),
        "L9": draw(parameters),
        **{name: draw(statements) for name in ("S1", "S2")},
    }
    before, after = draw(statements), draw(statements)
    around = draw(st.sampled_from(["{}", "got = {}", "raise {}", "use(1, {})"]))
    nest = draw(st.sampled_from([[], ["if deep:"], ["for i in r:", "with w:"]]))
    place = draw(
        st.sampled_from(
            [
                ("m:f", ["def f(größe):"]),
                ("m:f", ["@decorated(1)", "async def f():"]),
                ("m:K.f", ["class K(B):", "    @property", "    def f(self):"]),
                ("m:g.f", ["def g():", "    x = 1", "    def f():"]),
                ("m:f", ["if here:", "    def f():"]),
                ("m:K", ["class K:"]),
                ("m", ["if here:"]),
            ]
        )
    )
    texts = []
    for form in (shape.fixed, shape.buggy):
        lines = render_form(form, values)
        if expression:
            lines = around.format("\n".join(lines)).split("\n")
        for head in reversed(nest):
            lines = [head, *indent_lines(lines)]
        target, heads = place
        depth = heads[-1][: len(heads[-1]) - len(heads[-1].lstrip())] + "    "
        body = [*before, *lines, *after]
        inside = [depth + part if part else part for line in body for part in line.split("\n")]
        texts.append("\n".join([*heads, *inside, "", "tail = 1", ""]).replace(INSIDE, "\n"))
    return RoundTrip(shape, texts[0], texts[1], target)


def parse_meaning(text: str) -> str:
    return ast.dump(ast.parse(text))


@settings(max_examples=300, deadline=None, database=None)
@given(cases())
def test_reverting_gives_the_buggy_module_and_enabling_the_fixed_one(case: RoundTrip) -> None:
    note(case.fixed)
    toggle = make_edit_toggle(case.shape.fixed, case.shape.buggy, case.target)
    bug = revert_toggle(toggle, case.fixed)
    note(bug)
    assert parse_meaning(bug) == parse_meaning(case.buggy)
    assert parse_meaning(enable_toggle(toggle, bug)) == parse_meaning(case.fixed)
    assert parse_meaning(revert_toggle(toggle, enable_toggle(toggle, case.buggy))) == parse_meaning(
        case.buggy
    )
