"""Patterns: their matches and non-matches, and that rewritten code is the same code."""

from __future__ import annotations

import ast
import textwrap

import pytest
from memory import enable_toggle, make_edit_toggle, revert_toggle

from harness.core.errors import PatchError, ToggleNotApplicableError
from harness.core.source_scopes import ModuleSource
from harness.fixes.patterns import CodePattern, PatternError


def find_pieces(pattern: str, code: str, qualname: str = "") -> list[str]:
    """Return the pieces of code that a pattern matches."""
    text = textwrap.dedent(code)
    scopes = ModuleSource("m", "m.py", text).find_scopes(qualname)
    matches = (match for scope in scopes for match in CodePattern(pattern).find(scope, text))
    return [text[match.start : match.end] for match in matches]


def stands_for(pattern: str, code: str) -> dict[str, str]:
    (match,) = CodePattern(pattern).find(ModuleSource("m", "m.py", code).root, code)
    return match.bindings


def there_and_back(fixed: str, buggy: str, code: str, target: str = "m:f") -> str:
    """Return the reverted code; assert that enabling it restores the module."""
    toggle, text = make_edit_toggle(fixed, buggy, target), textwrap.dedent(code)
    bug = revert_toggle(toggle, text)
    assert ast.dump(ast.parse(enable_toggle(toggle, bug))) == ast.dump(ast.parse(text))
    assert ast.dump(ast.parse(bug)) != ast.dump(ast.parse(text))
    return bug


@pytest.mark.parametrize(
    "code",
    [
        "x = g(a, b + 1)",
        "x=g(a,b+1)",
        "x = g(\n    a,\n    b\n    + 1,\n)",
        "x = g(a, b + 1)  # why",
        "x = [g(a, b + 1) for a in c]",
    ],
)
def test_white_space_line_breaks_and_a_trailing_comma_do_not_matter(code: str) -> None:
    assert len(find_pieces("g(a, b + 1)", code)) == 1
    assert len(find_pieces("g(\n  a,\n  b + 1\n)", code)) == 1
    assert len(find_pieces("g($A, $B + 1)", code)) == 1


@pytest.mark.parametrize(
    ("pattern", "code"),
    [
        ("if a:\n    x()", "if a:\n    x()\nelse:\n    y()"),
        ("for a in b:\n    x()", "for a in b:\n    x()\nelse:\n    y()"),
        ("for a in b:\n    x()", "async def f():\n    async for a in b:\n        x()"),
        ("def f($$$P):\n    $$$BODY", "async def f(a):\n    x()"),
        ("def f($$$P):\n    $$$BODY", "def f(a) -> int:\n    x()"),
        ("assert a", "assert a, 'why'"),
        ("raise A", "raise A from b"),
        ("a < b", "a < b < c"),
        ("x[$A:]", "x[a::]"),
        ("x[:$A]", "x[::a]"),
        ("f'{x}'", "f'{x=}'"),
        ("g(a)", "g(*a)"),
        ("g(a)", "g(a, b)"),
        ("a in b", "a not in b"),
        ("except_ = 'a'", "except_ = b'a'"),
        ("x = (a)", "x = (a,)"),
    ],
)
def test_a_pattern_that_leaves_something_out_does_not_match(pattern: str, code: str) -> None:
    assert find_pieces(pattern, code) == []


@pytest.mark.parametrize(
    ("code", "items"),
    [
        ("g(1)", ""),
        ("g(1,)", ""),
        ("g(1, a)", "a"),
        ("g(1, a, *b, c=2, **d,)", "a, *b, c=2, **d"),
        ("g(\n    1,\n    a,\n    b,  # why\n)", "a,\nb"),
    ],
)
def test_a_list_metavariable_stands_for_any_number_of_items(code: str, items: str) -> None:
    assert stands_for("g(1, $$$REST)", code) == {"REST": items}
    assert stands_for("$F(1, $$$REST)", code) == {"F": "g", "REST": items}


@pytest.mark.parametrize("code", ["g()", "g(a)", "g(a, b)", "g(\n    a,\n    b,\n)", "g(a,)"])
@pytest.mark.parametrize(
    "buggy", ["h($$$A)", "h(1, $$$A)", "h($$$A, 2)", "h(1, $$$A, 2)", "h([$$$A])", "h(1, *[$$$A])"]
)
def test_a_list_metavariable_leaves_no_extra_comma(code: str, buggy: str) -> None:
    bug = there_and_back("g($$$A)", buggy, f"def f():\n    return {code}\n")
    items = "a, b" if "b" in code else "a" if "a" in code else ""
    wanted = ast.parse(buggy.replace("$$$A", items or "*()"))
    call = ast.unparse(wanted).replace(", *()", "").replace("*(), ", "").replace("*()", "")
    assert ast.unparse(ast.parse(bug)) == f"def f():\n    return {call}"


def test_a_metavariable_stands_for_the_same_code_throughout_a_form() -> None:
    assert find_pieces("x = $A\ny = $A", "x = g( 1 )\ny = g(1)") == ["x = g( 1 )\ny = g(1)"]
    assert find_pieces("x = $A\ny = $A", "x = g(1)\ny = g(2)") == []
    assert find_pieces("x = $A\ny = $A", "x = 'a b'\ny = 'ab'") == []
    assert find_pieces("g($A, $A)", "g(a, b)") == []


def test_a_run_is_found_in_any_block_and_changed_there_alone() -> None:
    code = "a()\nx = 1  # one\n\n# two\n\ny = 2\nb()\n"
    assert find_pieces("x = $A\ny = $B", code) == ["x = 1  # one\n\n# two\n\ny = 2"]
    code = "def f():\n    y = 0\n    while a:\n        x = 1\n        y = 2\n    y = 3\n"
    bug = there_and_back("x = $A\ny = $B", "y = $B\nx = $A", code)
    assert bug == "def f():\n    y = 0\n    while a:\n        y = 2\n        x = 1\n    y = 3\n"


@pytest.mark.parametrize(
    "code",
    ["x = 1\nz()\ny = 2", "y = 2\nx = 1", "if a:\n    x = 1\nelse:\n    y = 2", "g(x=1)\ny = 2"],
)
def test_a_run_is_made_of_whole_neighbouring_statements(code: str) -> None:
    assert find_pieces("x = $A\ny = $B", code) == []
    assert find_pieces("x()\ny()", "x()\ny()") == ["x()\ny()"]
    assert find_pieces("x()\ny()", "z = x()\ny()") == find_pieces("x()\ny()", "x()\nz = y()") == []
    with pytest.raises(PatternError, match="bare metavariable"):
        find_pieces("x = 1\n$REST", "x = 1")


def test_the_other_form_gets_what_the_metavariables_stand_for() -> None:
    code = "def f():\n    return (self.steps, width(max_bs, self.topk), max_bs + 1)\n"
    bug = there_and_back("($S, width($B, self.topk), $E)", "($E, width($B), $S)", code)
    assert bug == "def f():\n    return (max_bs + 1, width(max_bs), self.steps)\n"
    code = "# Grüße 😀 漢字\ndef f(größe):\n    s = '😀é'; return g(größe)  # é\n"
    assert there_and_back("g($A)", "h($A)", code) == code.replace("g(größe)", "h(größe)")


SCOPES = """\
g(0)

@decorate(g(1))
@other
def decorated():
    return g(2)

class Outer:
    field = g(3)

    @property
    def method(self):
        def nested():
            return g(4)
        return nested

    class Inner:
        @staticmethod
        def method():
            return g(5)

if condition:
    def either():
        return g(6)
else:
    def either():
        return g(7)

try:
    import something
except ImportError:
    async def fallback():
        return g(8)
"""


@pytest.mark.parametrize(
    ("qualname", "numbers"),
    [
        ("decorated", "12"),
        ("Outer", "345"),
        ("Outer.method", "4"),
        ("Outer.method.nested", "4"),
        ("Outer.Inner.method", "5"),
        ("either", "67"),
        ("fallback", "8"),
        ("", "012345678"),
        ("method", ""),
        ("nested", ""),
        ("Outer.field", ""),
        ("Outer.Inner.missing", ""),
    ],
)
def test_a_target_is_found_by_its_qualified_name(qualname: str, numbers: str) -> None:
    assert find_pieces("g($N)", SCOPES, qualname) == [f"g({number})" for number in numbers]


@pytest.mark.parametrize("target", ["decorated", "Outer.method.nested", "Outer.Inner.method"])
def test_only_the_target_changes(target: str) -> None:
    number = {"decorated": "2", "Outer.method.nested": "4", "Outer.Inner.method": "5"}[target]
    bug = there_and_back("return g($N)", "return h($N)", SCOPES, f"m:{target}")
    assert bug == SCOPES.replace(f"return g({number})", f"return h({number})")


def test_a_decorator_a_default_and_a_class_line_can_be_changed() -> None:
    code = "@keep\n@tuned(8)\ndef f(a=g(1)):\n    pass\n\nclass C(B):\n    x = 1\n    y = 2\n"
    assert "@keep\n@slow(8)\ndef f(" in there_and_back("tuned($N)", "slow($N)", code)
    assert "def f(a=h(1)):" in there_and_back("g($N)", "h($N)", code)
    bug = there_and_back("class C(B):\n    $$$BODY", "class C(D):\n    $$$BODY", code, "m:C")
    assert bug.endswith("class C(D):\n    x = 1\n    y = 2\n")


def test_a_form_of_several_lines_keeps_the_indentation_of_its_place() -> None:
    code = "def f():\n    if a:\n        x = g(1)\n        z()\n"
    bug = there_and_back("x = g($A)", "if b:\n    x = h($A)\nelse:\n    x = k($A)", code)
    lines = ("if b:", "    x = h(1)", "else:", "    x = k(1)", "z()\n")
    assert bug == "def f():\n    if a:\n        " + "\n        ".join(lines)


BODY = '''\
def f():
    for item in items:
        if item:
            # first
            text = """one
two
            three"""

            call(
                text,
            )
        # last
    return text
'''


@pytest.mark.parametrize(
    ("fixed", "buggy"),
    [
        ("for $I in items:\n    $$$BODY", "for $I in others:\n    $$$BODY"),
        ("for $I in items: $$$BODY", "for $I in others: $$$BODY"),
        ("for $I in items:\n  $$$BODY", "for $I in others:\n  $$$BODY"),
    ],
)
def test_a_body_is_written_back_with_its_shape(fixed: str, buggy: str) -> None:
    bug = there_and_back(fixed, buggy, BODY)
    assert ast.dump(ast.parse(bug)) == ast.dump(ast.parse(BODY.replace("items", "others")))
    assert "# first" in bug
    if fixed == "for $I in items:\n    $$$BODY":
        assert bug == BODY.replace("in items", "in others")


def test_a_body_moves_deeper_and_back_without_its_strings_changing() -> None:
    fixed = "for $I in items:\n    $$$BODY"
    buggy = "if items:\n    for $I in others:\n        $$$BODY"
    bug = there_and_back(fixed, buggy, BODY)
    assert '"""one\ntwo\n            three"""' in bug
    code = "def f():\n    if a: x(); y()\n    z()\n"
    assert "if b:" in there_and_back("if a: $$$BODY", "if b: $$$BODY", code)
    assert "\n                # first\n" in bug


def test_code_that_would_bind_otherwise_where_it_is_written_is_refused() -> None:
    toggle = make_edit_toggle("g($A)", "-$A")
    with pytest.raises(PatchError, match="its metavariables bind other code"):
        revert_toggle(toggle, "def f():\n    return g(x + y)\n")
    assert revert_toggle(toggle, "def f():\n    return g(x)\n") == "def f():\n    return -x\n"
    with pytest.raises(ToggleNotApplicableError, match="neither form"):  # its `else` would be lost
        revert_toggle(
            make_edit_toggle("if a:\n    x()", "y()"), "def f():\n    if a: x()\n    else: z()\n"
        )
