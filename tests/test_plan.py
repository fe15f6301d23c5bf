"""Plans: complete or refused, equal for equal toggles, and an error that names the toggle."""

from __future__ import annotations

import ast
import itertools
import json
import os
import sys
from pathlib import Path

import pytest
from calling import run_program
from memory import Memory, edit, toggle, variant

from harness.core.code_digest import compute_digest
from harness.core.errors import PatchConflictError, PatchError, ToggleNotApplicableError, UnfixError
from harness.fixes.patch_plan import Direction, PatchPlan, ToggleChoice, make_plan
from harness.fixes.registry.schema import Toggle, ToggleEdit, ToggleVariant

TEXT = """\
# Größe 😀
def f():
    width = rows * topk
    if deep:
        é = good(1); other = 2
    return width

def g():
    start()
    finish()
"""
WIDTH = edit("width = rows * topk", "width = rows", name="width")
CALL = edit("good($N)", "if_bad(\n    $N,\n)", name="call")
RUN = edit("start()\nfinish()", "start()\nagain()\nfinish()", "m:g", name="run")
BUGGY_TEXT = TEXT.replace(" * topk", "")


def revert(*toggles: Toggle) -> list[ToggleChoice]:
    return [ToggleChoice(each, Direction.REVERT) for each in toggles]


def enable(*toggles: Toggle) -> list[ToggleChoice]:
    return [ToggleChoice(each, Direction.ENABLE) for each in toggles]


def observe(*toggles: Toggle) -> list[ToggleChoice]:
    return [ToggleChoice(each, Direction.OBSERVE) for each in toggles]


def plan_modules(choices: list[ToggleChoice], **modules: str) -> PatchPlan:
    return make_plan(choices, Memory(modules or {"m": TEXT}), "0.5.9")


def refusal(kind: type[UnfixError], choices: list[ToggleChoice], **modules: str) -> str:
    with pytest.raises(kind) as caught:
        plan_modules(choices, **modules)
    return str(caught.value)


def test_a_plan_holds_the_module_with_the_other_form_and_nothing_else_changed() -> None:
    plan = plan_modules(revert(WIDTH))
    assert plan.release == "0.5.9"
    assert plan.toggles == (("width", "revert", "Something is off by one"),)
    (module,) = plan.modules
    assert (module.module, module.path, module.text) == ("m", "m.py", BUGGY_TEXT)
    assert module.digest == compute_digest(TEXT)
    assert plan_modules(enable(WIDTH), m=BUGGY_TEXT).modules[0].text == TEXT


def test_observing_keeps_the_text_and_says_where_the_code_is_in_either_state() -> None:
    for text in (TEXT, BUGGY_TEXT):
        (module,) = plan_modules(observe(WIDTH), m=text).modules
        assert module.text == text
        assert [site.direction for site in module.sites] == ["observe"]


def test_toggles_on_different_code_of_one_module_compose_in_any_order() -> None:
    wanted = BUGGY_TEXT.replace("good(1)", "if_bad(\n            1,\n        )")
    wanted = wanted.replace("    start()\n", "    start()\n    again()\n")
    for order in itertools.permutations([WIDTH, CALL, RUN]):
        (module,) = plan_modules(revert(*order)).modules
        assert module.text == wanted
    (module,) = plan_modules([*revert(RUN), *enable(WIDTH)], m=BUGGY_TEXT).modules
    assert module.text == TEXT.replace("    start()\n", "    start()\n    again()\n")


def test_a_toggle_over_two_modules_patches_both() -> None:
    edits = (ToggleEdit("one(a)", "one()"), ToggleEdit("two(a)", "two()", "n"))
    asked = toggle(ToggleVariant(">=0", edits, "m"))
    plan = plan_modules(revert(asked), m="one(a)\n", n="two(a)\n", other="one(a)\n")
    assert [module.text for module in plan.modules] == ["one()\n", "two()\n"]
    assert [module.module for module in plan.modules] == ["m", "n"]


def test_sites_say_the_lines_and_the_columns_of_the_patched_text() -> None:
    (module,) = plan_modules(revert(WIDTH, CALL, RUN)).modules
    found = {site.toggle: site for site in module.sites}
    nodes = {
        (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset): ast.unparse(node)
        for node in ast.walk(ast.parse(module.text))
        if isinstance(node, ast.stmt | ast.expr)
    }
    places = {name: (s.line, s.column, s.end_line, s.end_column) for name, s in found.items()}
    assert nodes[places["width"]] == "width = rows"
    assert nodes[places["call"]] == "if_bad(1)"
    assert places["width"] == (3, 4, 3, 16)
    assert places["call"] == (5, 13, 7, 9)
    assert places["run"] == (11, 4, 13, 12)
    assert found["run"].target == "m:g"
    assert {site.direction for site in module.sites} == {"revert"}


@pytest.mark.parametrize("first", [revert, observe])
def test_two_toggles_on_the_same_code_are_refused(first: object) -> None:
    part = edit("topk", "top", name="part")
    both = (revert if first is revert else observe)(WIDTH) + revert(part)
    message = f"{both[0]} and revert part change the same code, m line 3"
    assert refusal(PatchConflictError, both) == message
    assert "change the same code, m line 3" in refusal(PatchConflictError, both[::-1])
    twin = edit("width = rows * topk", "width = topk", name="twin")
    assert "change the same code" in refusal(PatchConflictError, revert(WIDTH, twin))


def test_neighbours_are_not_the_same_code() -> None:
    left, right = edit("'a'", "'x'", name="left"), edit("'b'", "'y'", name="right")
    (module,) = plan_modules(revert(left, right), m="def f():\n    return 'a''b'\n").modules
    assert module.text == "def f():\n    return 'x''y'\n"


@pytest.mark.parametrize(
    ("one", "other"), [("revert", "enable"), ("enable", "revert"), ("observe", "revert")]
)
def test_one_toggle_both_ways_is_refused(one: str, other: str) -> None:
    choices = [ToggleChoice(WIDTH, Direction(one)), ToggleChoice(WIDTH, Direction(other))]
    message = f"toggle width is requested in two directions: {one} and {other}"
    assert refusal(PatchConflictError, choices) == message
    assert plan_modules(revert(WIDTH, WIDTH)) == plan_modules(revert(WIDTH))


def test_a_toggle_in_its_target_state_is_refused() -> None:
    message = refusal(ToggleNotApplicableError, revert(WIDTH), m=BUGGY_TEXT)
    assert message.startswith("cannot revert width on SGLang 0.5.9: it is buggy there")
    assert "`enable` applies the fix" in message
    message = refusal(ToggleNotApplicableError, enable(WIDTH))
    assert message.startswith("cannot enable width on SGLang 0.5.9: it is fixed there")
    assert "`revert` removes it" in message
    text = TEXT.replace("finish()", "end()")  # one that does not apply stops the whole plan
    assert "cannot revert run" in refusal(ToggleNotApplicableError, revert(WIDTH, RUN), m=text)


@pytest.mark.parametrize("direction", list(Direction))
def test_an_absent_or_stale_toggle_is_refused(direction: Direction) -> None:
    later = toggle(variant((("a", "b"),), releases=">=0.6"), name="later")
    message = refusal(ToggleNotApplicableError, [ToggleChoice(later, direction)])
    assert "later on SGLang 0.5.9: it is absent there" in message
    text = TEXT.replace("* topk", "* self.topk")
    message = refusal(ToggleNotApplicableError, [ToggleChoice(WIDTH, direction)], m=text)
    assert "it is stale there: m:f has neither form" in message
    assert "+width = rows * self.topk" in message


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (edit("value($A)", "$A = 1\nvalue()"), "def f():\n    return value(a)\n"),
        (edit("value($A)", "value($A=1)"), "def f():\n    return value('a')\n"),
        (edit("x = $A", "return $A", "m"), "x = 1\n"),
        (edit("x = $A", "x = await $A"), "def f():\n    x = 1\n"),
    ],
)
def test_a_patched_source_that_does_not_compile_is_refused(asked: Toggle, text: str) -> None:
    with pytest.raises(
        PatchError, match=r"m does not compile after revert some-fix: .* at line \d"
    ):
        plan_modules(revert(asked), m=text)


def test_a_form_beside_the_written_one_is_refused() -> None:
    with pytest.raises(PatchError, match="the other form 1 times"):
        plan_modules(revert(edit("x = a", "x = b\nx = a")), m="def f():\n    x = a\n")
    writes = edit("other = 2", "width = rows", name="writes")
    assert plan_modules(revert(writes))
    with pytest.raises(PatchError, match=r"revert width: .* the written form 2 times"):
        plan_modules(revert(WIDTH, writes))


PRINT_PLAN = """
import json
from memory import Memory
from test_plan import CALL, RUN, TEXT, WIDTH, edit, revert
from harness.fixes.patch_plan import make_plan
many = edit("many($$$A, $$$B)", "few($$$B, $$$A)", "n", name="many")
modules = {"m": TEXT, "n": "many()"}
print(json.dumps(make_plan(revert(WIDTH, many, CALL, RUN), Memory(modules), "0.5.9").as_data()))
"""


def test_a_plan_is_the_same_in_every_process() -> None:
    answers = set()
    for seed in ("0", "1", "2"):
        here = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": here}
        answer = run_program([sys.executable, "-c", PRINT_PLAN], env=environment, check=True)
        answers.add(answer.stdout)
    (one,) = answers
    assert [module["module"] for module in json.loads(one)["modules"]] == ["m", "n"]
