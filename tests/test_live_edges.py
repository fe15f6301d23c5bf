"""Live toggles at their edges: reloads, late importers, suspended frames, threads, caches, fork."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import inspect
import os
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live_lab import Lab
from sglang import forms

from harness import toggles
from harness.core.errors import PatchError
from harness.patching import live_functions
from harness.sanitizer.plugins.for_sglang import cached_answers

TOY_TOGGLES = (Path(__file__).parent / "toy" / "toggles",)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    new_lab = Lab(tmp_path)
    yield new_lab
    new_lab.clean()


def test_a_reloaded_module_is_toggled_anew(lab: Lab) -> None:
    module = lab.module("reload", "def f():\n    return 1\n")
    lab.toggle("lab-reload", "reload", "f", "return 1", "return 2")
    with lab.revert("lab-reload"):
        assert module.f() == 2
    importlib.reload(module)
    with lab.revert("lab-reload"):
        assert module.f() == 2
    assert module.f() == 1


ANSWERS = """
import functools

def cache_once(function):
    result_map = {}

    @functools.wraps(function)
    def ask(*arguments):
        if arguments not in result_map:
            result_map[arguments] = function(*arguments)
        return result_map[arguments]

    return ask

def helper():
    return 1

@cache_once
def load_module():
    return helper() + 10
"""


@pytest.mark.parametrize(
    ("target", "text"), [("helper", "return 1"), ("load_module", "helper() + 10")]
)
def test_answers_that_the_other_code_gave_are_asked_anew(lab: Lab, target: str, text: str) -> None:
    """A supervisor loads modules without toggles; its forks run the loaders under them."""
    module = lab.module("answers", ANSWERS)
    lab.toggle("lab-answers", "answers", target, text, text.replace("1", "2"))
    own, expected = module.load_module(), {"helper": 12, "load_module": 21}[target]
    with lab.revert("lab-answers"):
        assert module.load_module() == expected
    assert module.load_module() == own == 11


def test_what_loaders_loaded_depends_on_all_code_of_the_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("sglang.kernels.ops.lab", "sglang.kernels.jit.lab", "sglang.srt.lab")
    loaders, machinery, other = (types.ModuleType(name) for name in names)
    for module in (loaders, machinery, other):
        exec(ANSWERS, vars(module))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    registered = {"of ours"}
    monkeypatch.setattr(cached_answers, "_registered", [registered])

    def count_answers(module: types.ModuleType) -> int:
        return sum(map(len, cached_answers.iterate_answer_maps(module)))

    loaders.load_module()
    cached_answers.forget_dependent_answers(other)
    assert (count_answers(loaders), registered) == (1, {"of ours"})
    cached_answers.forget_dependent_answers(machinery)
    assert (count_answers(loaders), registered) == (0, set())


def test_another_threads_toggle_stays_in_while_one_is_built(lab: Lab) -> None:
    filler = "\n".join(f"def filler_{n}():\n    return {n}\n" for n in range(1500))
    module = lab.module("big", f"def f():\n    return 1\n\ndef g():\n    return 1\n{filler}")
    lab.toggle("lab-f", "big", "f", "return 1", "return 2")
    lab.toggle("lab-g", "big", "g", "return 1", "return 2")
    seen: set[int] = set()
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            seen.add(module.f())

    with lab.revert("lab-f"):
        thread = threading.Thread(target=watch)
        thread.start()
        try:
            with lab.revert("lab-g"):
                assert (module.f(), module.g()) == (2, 2)
        finally:
            done.set()
            thread.join()
    assert seen == {2}
    assert (module.f(), module.g()) == (1, 1)


def test_a_suspended_generator_outlives_its_toggle() -> None:
    with toggles.reverted("toy-generator", folders=TOY_TOGGLES):
        going = forms.Forms().generate(3)
        assert next(going) == 0
    assert list(going) == [3, 6]


def test_an_async_function_and_a_generator_run_under_the_decorator() -> None:
    reverted = toggles.reverted("toy-plain", folders=TOY_TOGGLES)

    @reverted
    async def call_async() -> int:
        await asyncio.sleep(0)
        return int(forms.plain(3, 5))

    @reverted
    def generate_call() -> Iterator[int]:
        yield forms.plain(3, 5)

    assert reverted(lambda: forms.plain(3, 5))() == 6
    assert asyncio.run(call_async()) == 6
    assert list(generate_call()) == [6]
    assert forms.plain(3, 5) == 30

    async def stream() -> Any:
        yield 1

    with pytest.raises(PatchError, match="async generator"):
        reverted(stream)


def test_kept_answers_of_one_code_are_not_given_for_the_other() -> None:
    assert forms.cached(1) == 21
    with toggles.reverted("toy-cached", folders=TOY_TOGGLES):
        assert forms.cached(1) == 201
    assert forms.cached(1) == 21


def test_lambdas_made_before_and_during_change_with_their_maker(lab: Lab) -> None:
    module = lab.module("lambdas", "def make():\n    return lambda value: value + 1\n")
    lab.toggle("lab-lambda", "lambdas", "make", "value + 1", "value + 100")
    early = module.make()
    with lab.revert("lab-lambda"):
        during = module.make()
        assert (early(1), during(1)) == (101, 101)
    assert (early(1), during(1)) == (2, 2)


def test_a_closure_that_would_need_another_variable_is_refused(lab: Lab) -> None:
    text = "def make(a, b):\n    def inner():\n        return a\n    return inner, b\n"
    module = lab.module("free", text)
    lab.toggle("lab-free", "free", "make", "return a", "return a + b")
    early, _ = module.make(1, 2)
    with pytest.raises(PatchError, match="outer variables of a closure"):
        lab.revert("lab-free").__enter__()
    assert early() == 1


BODIES = {
    "private": ("class C:\n    __secret = 8\n", "C", "__secret = 8", "__secret = 80"),
    "derived": ("class C:\n    a = 8\n    b = a * 2\n", "C", "a = 8", "a = 80"),
    "branch": ("class C:\n    if True:\n        a = 8\n", "C", "a = 8", "a = 80"),
    "base": ("class C(list): pass\n", "C", "class C(list): $$$B", "class C(list, object): $$$B"),
    "annotation": ("class C:\n    a: int = 8\n", "C", "a: int = 8", "a: float = 8"),
    "named tuple": ("import typing\nclass C(typing.NamedTuple):\n    a: int = 8\n",
                    "C", "a: int = 8", "a: int = 80"),
    "grandchild": ("from dataclasses import dataclass\n@dataclass\nclass C:\n    a: int = 8\n"
                   "class D(C): pass\n@dataclass\nclass E(D): pass\n",
                   "C", "a: int = 8", "a: int = 80"),
    "decorator": ("import functools\n@functools.lru_cache(maxsize=8)\ndef f(): return 1\n",
                  "f", "functools.lru_cache(maxsize=8)", "functools.lru_cache(maxsize=80)"),
}  # fmt: skip


@pytest.mark.parametrize("case", BODIES)
def test_what_would_only_half_change_is_refused(lab: Lab, case: str) -> None:
    text, target, fixed, buggy = BODIES[case]
    lab.module("bodies", text)
    lab.toggle("lab-body", "bodies", target, fixed, buggy)
    with pytest.raises(PatchError, match="toggle it at import"):
        lab.revert("lab-body").__enter__()


def test_annotations_are_left_alone(lab: Lab) -> None:
    module = lab.module("annotated", "class C:\n    a: 'int' = 8\n\n\nN: 'int' = 5\n")
    lab.toggle("lab-class", "annotated", "C", "a: 'int' = 8", "a: 'int' = 80")
    lab.toggle("lab-name", "annotated", "", "N: 'int' = 5", "N: 'int' = 50")
    before = dict(module.C.__annotations__), dict(module.__annotations__)
    with lab.revert("lab-class", "lab-name"):
        assert (module.C.a, module.N) == (80, 50)
    assert (module.C.__annotations__, module.__annotations__) == before
    assert (module.C.a, module.N) == (8, 5)


def test_a_keyword_only_field_stays_keyword_only(lab: Lab) -> None:
    text = "@dataclass(kw_only=True)\nclass C:\n    a: int\n    b: int = 8\n"
    module = lab.module("keywords", f"from dataclasses import dataclass\n{text}")
    lab.toggle("lab-keyword", "keywords", "C", "b: int = 8", "b: int = 80")
    with lab.revert("lab-keyword"):
        assert dataclasses.astuple(module.C(a=1)) == (1, 80)
        with pytest.raises(TypeError):
            module.C(1)
    assert dataclasses.astuple(module.C(a=1)) == (1, 8)


def test_two_fields_of_one_dataclass_come_and_go_apart(lab: Lab) -> None:
    text = "@dataclass\nclass C:\n    a: int = 1\n    b: int = 2\n"
    module = lab.module("fields", f"from dataclasses import dataclass\n{text}")
    lab.toggle("lab-a", "fields", "C", "a: int = 1", "a: int = 10")
    lab.toggle("lab-b", "fields", "C", "b: int = 2", "b: int = 20")
    first, second = lab.revert("lab-a"), lab.revert("lab-b")
    first.__enter__()
    second.__enter__()
    assert dataclasses.astuple(module.C()) == (10, 20)
    first.__exit__(None, None, None)
    assert dataclasses.astuple(module.C()) == (1, 20)
    second.__exit__(None, None, None)
    assert dataclasses.astuple(module.C()) == (1, 2)


def test_a_file_edited_after_its_import_is_not_put_into_the_process(lab: Lab) -> None:
    module = lab.module("edited", "def f():\n    return 1 + 0\n")
    path = Path(str(module.__file__))
    path.write_text("def f():\n    return 1 + 1000\n")
    lab.toggle("lab-edited", "edited", "f", "return 1 + $X", "return 2 + $X")
    with pytest.raises(PatchError, match="was edited after this process imported it"):
        lab.revert("lab-edited").__enter__()
    assert module.f() == 1


def test_a_target_that_does_not_import_says_why(lab: Lab) -> None:
    path = lab.package / "lab_broken.py"
    path.write_text("import no_such_package\n\n\ndef f():\n    return 1\n")
    lab.toggle("lab-broken", "broken", "f", "return 1", "return 2")
    with pytest.raises(PatchError, match="lab_broken does not import here: ModuleNotFound"):
        lab.revert("lab-broken").__enter__()


def test_odd_line_ends_and_encodings_keep_their_lines(lab: Lab) -> None:
    text = "\ufeffA = 'é'\n\x0c\ndef first():\n    return 0\n\x0c\ndef f():\n    return 1\n"
    path = lab.package / "lab_odd.py"
    path.write_bytes(text.replace("\n", "\r\n").encode("utf-8"))
    lab.made.append("sglang.lab_odd")
    importlib.invalidate_caches()
    module = importlib.import_module("sglang.lab_odd")
    lab.toggle("lab-odd", "odd", "f", "return 1", "return 2")

    with lab.revert("lab-odd"):
        assert module.f() == 2
        assert inspect.getsource(module.f).startswith("def f():\n    return 2")
    assert module.f() == 1


ADDING = """
import math

class Sum:
    def all(self, numbers):
        return sum(numbers)

    def last(self):
        return 0

def use(numbers):
    return Sum().all(numbers), hasattr(Sum, "product")

def unused():
    return 0
"""


def toggle_addition(lab: Lab, name: str, target: str, first: str, second: str, added: str) -> None:
    """Make a toggle that adds a definition between two others."""
    parts = [f"def {first}:\n    $$$ONE", f"def {second}:\n    $$$TWO"]
    lab.toggle(name, "adding", target, "\n\n".join(parts), f"\n\n{added}\n\n".join(parts))


def test_code_that_a_fix_adds_is_there_for_the_block_and_counted(lab: Lab) -> None:
    """A method, a function, an imported name; without the fix nothing of them is there."""
    module = lab.module("adding", ADDING)
    methods = "all(self, numbers)", "last(self)"
    product = "def product(self, numbers=(2, 3)):\n    return math.prod(numbers) * double(1)"
    toggle_addition(lab, "lab-method", "Sum", *methods, product)
    toggle_addition(
        lab, "lab-function", "", "use(numbers)", "unused()", "def double(n): return 2 * n"
    )
    lab.toggle("lab-import", "adding", "", "import math", "import math, cmath")
    before = dict(vars(module)), dict(vars(module.Sum))
    with lab.revert("lab-method", "lab-import", "lab-function") as changed:
        assert module.use([1, 2]) == (3, True)
        reach = changed.reach
        assert module.Sum().product() == 12
        assert changed.reach == reach + 2
        assert module.cmath.sqrt(-1) == 1j
    assert (dict(vars(module)), dict(vars(module.Sum))) == before


def test_a_method_with_super_is_not_added_live(lab: Lab) -> None:
    lab.module("adding", ADDING)
    toggle_addition(
        lab, "lab-super", "Sum", "all(self, numbers)", "last(self)",
        "def more(self): return super()",
    )  # fmt: skip
    with pytest.raises(PatchError, match=r"one with super\(\)"), lab.revert("lab-super"):
        pass


def test_a_forked_child_counts_for_itself() -> None:
    with toggles.observed("toy-plain", folders=TOY_TOGGLES) as seen:
        for _ in range(5):
            forms.plain(1, 1)
        child = os.fork()
        if child == 0:
            before = seen.reach
            forms.plain(1, 1)
            os._exit(0 if (before, seen.reach) == (0, 1) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert seen.reach == 5


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("def f(*a): return a", "def f(**a): return a"),
        ("x = (1, 2)", "x = (1.0, 2)"),
        ("x = 0.0", "x = -0.0"),
        ("x = y in {1, 2}", "x = y in {1.0, 2}"),
        ("x = 1", "x = True"),
    ],
)
def test_codes_that_behave_otherwise_have_other_keys(one: str, other: str) -> None:
    keys = [
        live_functions.make_behaviour_key(compile(text, "", "exec"))
        for text in (one, f"# moved\n{one}", other)
    ]
    assert keys[0] == keys[1]
    assert keys[0] != keys[2]
