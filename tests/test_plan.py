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
from memory import Memory, make_edit_toggle

from harness.core.code_digest import compute_digest
from harness.core.errors import PatchConflictError, PatchError, ToggleNotApplicableError, UnfixError
from harness.core.source_scopes import ModuleSource
from harness.fixes import patch_plan
from harness.fixes.patch_plan import Direction, PatchPlan, ToggleChoice, make_plan
from harness.fixes.registry.schema import Toggle

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
WIDTH = make_edit_toggle("width = rows * topk", "width = rows", name="width")
CALL = make_edit_toggle("good($N)", "if_bad(\n    $N,\n)", name="call")
RUN = make_edit_toggle("start()\nfinish()", "start()\nagain()\nfinish()", "m:g", name="run")
BUGGY_TEXT = TEXT.replace(" * topk", "")


def choose_reverted(*toggles: Toggle) -> list[ToggleChoice]:
    return [ToggleChoice(each, Direction.REVERT) for each in toggles]


def choose_enabled(*toggles: Toggle) -> list[ToggleChoice]:
    return [ToggleChoice(each, Direction.ENABLE) for each in toggles]


def choose_observed(*toggles: Toggle) -> list[ToggleChoice]:
    return [ToggleChoice(each, Direction.OBSERVE) for each in toggles]


def plan_modules(choices: list[ToggleChoice], **modules: str) -> PatchPlan:
    return make_plan(choices, Memory(modules or {"m": TEXT}), "0.5.9")


def read_refusal(kind: type[UnfixError], choices: list[ToggleChoice], **modules: str) -> str:
    with pytest.raises(kind) as caught:
        plan_modules(choices, **modules)
    return str(caught.value)


def test_a_plan_holds_the_module_with_the_other_form_and_nothing_else_changed() -> None:
    plan = plan_modules(choose_reverted(WIDTH))
    assert plan.release == "0.5.9"
    assert plan.toggles == (("width", "revert", "Something is off by one"),)
    (module,) = plan.modules
    assert (module.module, module.path, module.text) == ("m", "m.py", BUGGY_TEXT)
    assert module.digest == compute_digest(TEXT)
    assert plan_modules(choose_enabled(WIDTH), m=BUGGY_TEXT).modules[0].text == TEXT


def test_toggles_on_different_code_of_one_module_compose_in_any_order() -> None:
    wanted = BUGGY_TEXT.replace("good(1)", "if_bad(\n            1,\n        )")
    wanted = wanted.replace("    start()\n", "    start()\n    again()\n")
    for order in itertools.permutations([WIDTH, CALL, RUN]):
        (module,) = plan_modules(choose_reverted(*order)).modules
        assert module.text == wanted
    (module,) = plan_modules([*choose_reverted(RUN), *choose_enabled(WIDTH)], m=BUGGY_TEXT).modules
    assert module.text == TEXT.replace("    start()\n", "    start()\n    again()\n")


def test_sites_say_the_lines_and_the_columns_of_the_patched_text() -> None:
    (module,) = plan_modules(choose_reverted(WIDTH, CALL, RUN)).modules
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


@pytest.mark.parametrize("first", [choose_reverted, choose_observed])
def test_two_toggles_on_the_same_code_are_refused(first: object) -> None:
    part = make_edit_toggle("topk", "top", name="part")
    both = (choose_reverted if first is choose_reverted else choose_observed)(
        WIDTH
    ) + choose_reverted(part)
    message = f"{both[0]} and revert part change the same code, m line 3"
    assert read_refusal(PatchConflictError, both) == message
    assert "change the same code, m line 3" in read_refusal(PatchConflictError, both[::-1])
    twin = make_edit_toggle("width = rows * topk", "width = topk", name="twin")
    assert "change the same code" in read_refusal(PatchConflictError, choose_reverted(WIDTH, twin))


def test_neighbours_are_not_the_same_code() -> None:
    left, right = (
        make_edit_toggle("'a'", "'x'", name="left"),
        make_edit_toggle("'b'", "'y'", name="right"),
    )
    (module,) = plan_modules(
        choose_reverted(left, right), m="def f():\n    return 'a''b'\n"
    ).modules
    assert module.text == "def f():\n    return 'x''y'\n"


def test_a_toggle_in_its_target_state_is_refused() -> None:
    message = read_refusal(ToggleNotApplicableError, choose_reverted(WIDTH), m=BUGGY_TEXT)
    assert message.startswith("cannot revert width on SGLang 0.5.9: it is buggy there")
    assert "`enable` applies the fix" in message
    message = read_refusal(ToggleNotApplicableError, choose_enabled(WIDTH))
    assert message.startswith("cannot enable width on SGLang 0.5.9: it is fixed there")
    assert "`revert` removes it" in message
    text = TEXT.replace("finish()", "end()")  # one that does not apply stops the whole plan
    assert "cannot revert run" in read_refusal(
        ToggleNotApplicableError, choose_reverted(WIDTH, RUN), m=text
    )


@pytest.mark.parametrize(
    ("toggle", "text"),
    [
        (make_edit_toggle("value($A)", "$A = 1\nvalue()"), "def f():\n    return value(a)\n"),
        (make_edit_toggle("value($A)", "value($A=1)"), "def f():\n    return value('a')\n"),
        (make_edit_toggle("x = $A", "return $A", "m"), "x = 1\n"),
        (make_edit_toggle("x = $A", "x = await $A"), "def f():\n    x = 1\n"),
    ],
)
def test_a_patched_source_that_does_not_compile_is_refused(toggle: Toggle, text: str) -> None:
    with pytest.raises(
        PatchError, match=r"m does not compile after revert some-fix: .* at line \d"
    ):
        plan_modules(choose_reverted(toggle), m=text)


def test_a_problem_has_its_line_in_the_whole_module() -> None:
    toggle = make_edit_toggle("x = $A", "x = await $A")
    with pytest.raises(PatchError, match="at line 5"):
        plan_modules(choose_reverted(toggle), m="a = 1\n\n\ndef f():\n    x = 1\n")


def test_the_statements_that_edits_change_are_checked_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked: list[str] = []
    check = patch_plan._check_syntax

    def note(source: ModuleSource, changes: str) -> None:
        checked.append(source.text)
        check(source, changes)

    monkeypatch.setattr(patch_plan, "_check_syntax", note)
    first, _, second = TEXT.partition("\n\n")
    f = first.partition("\n")[2]  # behind the comment
    plan_modules(choose_reverted(CALL), m=f"{TEXT}\nLAST = 1\n")
    plan_modules(choose_reverted(WIDTH, CALL, RUN), m=f"import a\n{TEXT}\nLAST = 1\n")
    longer_call = "if_bad(\n            1,\n        )"
    f = f.replace("good(1)", longer_call)
    second = second.replace("finish", "again()\n    finish")
    assert checked == [f"{f}\n", f"{f.replace(' * topk', '')}\n{second}"]


def test_a_form_beside_the_written_one_is_refused() -> None:
    with pytest.raises(PatchError, match="the other form 1 times"):
        plan_modules(
            choose_reverted(make_edit_toggle("x = a", "x = b\nx = a")), m="def f():\n    x = a\n"
        )
    writes = make_edit_toggle("other = 2", "width = rows", name="writes")
    assert plan_modules(choose_reverted(writes))
    with pytest.raises(PatchError, match=r"revert width: .* the written form 2 times"):
        plan_modules(choose_reverted(WIDTH, writes))


PRINT_PLAN = """
import json
from memory import Memory
from test_plan import CALL, RUN, TEXT, WIDTH, choose_reverted, make_edit_toggle
from harness.fixes.patch_plan import make_plan
many = make_edit_toggle("many($$$A, $$$B)", "few($$$B, $$$A)", "n", name="many")
modules = {"m": TEXT, "n": "many()"}
plan = make_plan(choose_reverted(WIDTH, many, CALL, RUN), Memory(modules), "0.5.9")
print(json.dumps(plan.as_data()))
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
