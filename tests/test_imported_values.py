"""What an import took of a toggled module: names follow a live toggle, made values cannot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from live_lab import Lab

from harness.core.errors import PatchError


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    new_lab = Lab(tmp_path)
    yield new_lab
    new_lab.clean()


CONSTANT = "LIMIT = 100\n\n\ndef read():\n    return LIMIT\n"


def test_a_constant_reaches_importers_that_came_later_and_through_others(lab: Lab) -> None:
    origin = lab.module("constant", CONSTANT)
    lab.toggle("lab-constant", "constant", "", "LIMIT = 100", "LIMIT = 10")
    with lab.revert("lab-constant"):
        assert origin.read() == 10
    middle = lab.module("middle", "from sglang.lab_constant import LIMIT\n")
    last = lab.module("last", "from sglang.lab_middle import LIMIT as TOP\n")
    with lab.revert("lab-constant"):
        assert (middle.LIMIT, last.TOP) == (10, 10)
    assert (origin.read(), middle.LIMIT, last.TOP) == (100, 100, 100)


def test_a_module_imported_under_a_toggle_gets_the_true_constant_afterwards(lab: Lab) -> None:
    lab.module("constant", CONSTANT)
    lab.toggle("lab-constant", "constant", "", "LIMIT = 100", "LIMIT = 10")
    with lab.revert("lab-constant"):
        late = lab.module("late", "from sglang.lab_constant import LIMIT\n")
        assert late.LIMIT == 10
    assert late.LIMIT == 100


FROM, WHOLE = "from sglang.lab_constant import LIMIT", "from sglang import lab_constant as origin"
DERIVING = {
    "a constant": (FROM, "DOUBLE = LIMIT * 2"),
    "a default": (FROM, "def f(x=LIMIT): return x"),
    "an attribute of the module": (WHOLE, "DOUBLE = origin.LIMIT * 2"),
    "an attribute by its name": (WHOLE, "DOUBLE = getattr(origin, 'LIMIT') * 2"),
    "a plain copy": (WHOLE, "COPY = origin.LIMIT"),
    "a class body": (WHOLE, "class C: size = origin.LIMIT"),
    "a lambda that ran": (FROM, "DOUBLE = (lambda: LIMIT * 2)()"),
    "a function that reads it": (WHOLE, "COPY = origin.read()"),
    "an import within a function": ("def f():", f"  {FROM}\n  return LIMIT\nCOPY = f()"),
}


@pytest.mark.parametrize("case", DERIVING)
def test_a_value_that_an_import_derived_is_refused(lab: Lab, case: str) -> None:
    lab.module("constant", CONSTANT)
    lab.module("derives", "\n".join(DERIVING[case]) + "\n")
    lab.toggle("lab-constant", "constant", "", "LIMIT = 100", "LIMIT = 10")
    where = "line 5 of .*lab_constant" if "reads it" in case else "line 2 of .*lab_derives"
    with pytest.raises(PatchError, match=f"what {where}.py derives from LIMIT is evaluated once"):
        lab.revert("lab-constant").__enter__()


def test_a_value_that_nothing_has_derived_yet_is_toggled(lab: Lab) -> None:
    origin = lab.module("constant", CONSTANT)
    later = lab.module("later", f"{WHOLE}\ntwice = lambda: origin.LIMIT * 2\n")
    lab.toggle("lab-constant", "constant", "", "LIMIT = 100", "LIMIT = 10")
    with lab.revert("lab-constant"):
        assert (origin.read(), later.twice()) == (10, 20)


PICK = (
    "def pick(x=1):\n    return x + 1\n\n\ndef wrap(f):\n    def inner():\n        return f() + 1\n"
)
PICK += "    return inner\n"
CALLING = {
    "a call": ("PICKED = origin.pick()", "pick"),
    "a call of a call": ("def f(): return origin.pick()\nPICKED = f()", "pick"),
    "a default of a function that is called": ("PICKED = origin.pick()", "pick default"),
    "a nested function": ("PICKED = origin.wrap(lambda: 1)()", "wrap"),
}
PICK_EDITS = {
    "pick": ("pick", "return x + 1", "return x + 2"),
    "pick default": ("pick", "def pick(x=1): $$$B", "def pick(x=2): $$$B"),
    "wrap": ("wrap", "return f() + 1", "return f() + 2"),
}


@pytest.mark.parametrize("case", CALLING)
def test_a_function_that_an_import_called_is_refused(lab: Lab, case: str) -> None:
    calling, edit = CALLING[case]
    lab.module("origin", PICK)
    lab.module("calls", f"from sglang import lab_origin as origin\n{calling}\n")
    lab.toggle("lab-pick", "origin", *PICK_EDITS[edit])
    with pytest.raises(PatchError, match="what an import computed with"):
        lab.revert("lab-pick").__enter__()
    with lab.observe("lab-pick"):  # it changes nothing
        pass


def test_a_wrapper_that_an_import_made_and_did_not_call_is_toggled(lab: Lab) -> None:
    origin = lab.module("origin", f"{PICK}\n\n@wrap\ndef wrapped():\n    return 1\n")
    lab.toggle("lab-pick", "origin", *PICK_EDITS["wrap"])
    with lab.revert("lab-pick"):
        assert origin.wrapped() == 3
    assert origin.wrapped() == 2


FIELD = "from dataclasses import dataclass\n{}class C:\n    size: int = 8\n"


@pytest.mark.parametrize(
    ("decorator", "calling", "words"),
    [
        ("", "from sglang import lab_fields\nTWICE = lab_fields.C.size * 2", "derives from size"),
        (
            "@dataclass\n",
            "from sglang import lab_fields\nMADE = lab_fields.C()",
            r"an import computed with C\(\)",
        ),
    ],
)
def test_an_attribute_that_an_import_has_read_is_refused(
    lab: Lab, decorator: str, calling: str, words: str
) -> None:
    lab.module("fields", FIELD.format(decorator))
    lab.module("reads", calling)
    lab.toggle("lab-field", "fields", "C", "size: int = 8", "size: int = 80")
    with pytest.raises(PatchError, match=words):
        lab.revert("lab-field").__enter__()


def test_a_constant_counts_its_readers_and_not_names_that_shadow_it(lab: Lab) -> None:
    shadow = "def other(LIMIT):\n    return LIMIT\n\n\n"
    shadow += "def third():\n    LIMIT = 3\n    return LIMIT\n"
    module = lab.module("constant", f"{CONSTANT}\n\n{shadow}")
    lab.toggle("lab-constant", "constant", "", "LIMIT = 100", "LIMIT = 10")
    with lab.observe("lab-constant") as seen:
        module.other(1)
        module.third()
        assert seen.reach == 0
        module.read()
        assert seen.reach == 1
