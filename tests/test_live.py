"""Live toggles: every form of code changes for every caller, and is restored afterwards."""

from __future__ import annotations

import gc
import inspect
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sglang import forms, users

from harness import toggles
from harness.core.errors import (
    PatchConflictError,
    ToggleNotApplicableError,
    UnknownToggleError,
)

FOLDER = (Path(__file__).parent / "toy" / "toggles",)


def make_revert(*names: str) -> toggles.ToggleContext:
    return toggles.reverted(*names, folders=FOLDER)


def make_observation(*names: str) -> toggles.ToggleContext:
    return toggles.observed(*names, folders=FOLDER)


def set_area() -> int:
    instance = forms.Forms()
    instance.area = 40
    return int(instance.height)


CASES: list[tuple[str, Callable[[], Any], Any, Any]] = [
    ("toy-plain", lambda: forms.plain(3, 5), 30, 6),
    ("toy-plain", lambda: users.use(3, 5), 30, 6),
    ("toy-decorated", lambda: users.call_decorated(1), ("logged", 2), ("logged", 101)),
    ("toy-concealed", lambda: forms.concealed(1), ("hidden", ("hidden", 11)),
     ("hidden", ("hidden", 101))),
    ("toy-cached", lambda: forms.cached.__wrapped__(1), 21, 201),
    ("toy-closure", lambda: users.MADE_EARLY(100), 105, 95),
    ("toy-closure", lambda: forms.outer(5)(100), 105, 95),
    ("toy-default", lambda: forms.with_default(1), 8, 142),
    ("toy-constant", lambda: users.is_below(50), True, False),
    ("toy-constant", users.limits, (100, 100), (10, 10)),
    ("toy-method", lambda: forms.Forms().method(2), 16, 6),
    ("toy-static", lambda: forms.Forms.static(1), 0, -99),
    ("toy-class-method", lambda: forms.Forms.of_class(1), ("Forms", -1), ("Forms", -199)),
    ("toy-property", lambda: forms.Forms().area, 24, 11),
    ("toy-setter", set_area, 5, 40),
    ("toy-cached-property", lambda: forms.Forms().once, 1008, 9008),
    ("toy-super", lambda: forms.Forms().size(), 2, 101),
    ("toy-generator", lambda: list(forms.Forms().generate(3)), [0, 2, 4], [0, 3, 6]),
    ("toy-class-body", lambda: forms.Forms.width, 8, 80),
    ("toy-dataclass", lambda: forms.Settings("a").pages, 16, 32),
    ("toy-dataclass", lambda: forms.Settings("a").tags, [], []),
    ("toy-branch", forms.either, "high branch", "other branch"),
]  # fmt: skip


def take_snapshot() -> dict[str, Any]:
    """Return every object of the toy that a toggle may change, with its code."""
    state: dict[str, Any] = {}
    for module in (forms, users):
        for name, value in vars(module).items():
            state[f"{module.__name__}.{name}"] = id(value)
            if inspect.isclass(value):
                for key, item in vars(value).items():
                    state[f"{module.__name__}.{name}.{key}"] = id(item)
    for function in gc.get_objects():
        if inspect.isfunction(function) and function.__module__ in ("sglang.forms", "sglang.users"):
            key = f"function {id(function)}"
            parts = (function.__code__, function.__defaults__, function.__kwdefaults__)
            state[key] = [id(part) for part in parts]
    return state


def assert_unchanged(before: dict[str, Any]) -> None:
    after = take_snapshot()
    assert {key: after.get(key) for key in before} == before


@pytest.mark.parametrize(("name", "call", "fixed", "buggy"), CASES, ids=[case[0] for case in CASES])
def test_each_form_changes_and_is_restored(
    name: str, call: Callable[[], Any], fixed: Any, buggy: Any
) -> None:
    before = take_snapshot()
    assert call() == fixed
    with make_revert(name) as toggled:
        assert call() == buggy
    assert call() == fixed
    # A class body runs at import only, and a constant counts its own module's readers.
    counted = name not in ("toy-class-body", "toy-dataclass") and call is not users.limits
    assert toggled.reach == 0 or counted
    assert toggled.reach >= 1 or not counted
    assert_unchanged(before)


def test_a_process_finds_the_toggles_of_the_folders_that_a_command_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UNFIX_TOGGLES", str(FOLDER[0]))
    with toggles.reverted("toy-plain"):
        assert forms.plain(1, 2) != 4


def test_all_is_as_it_was_also_when_the_body_raised() -> None:
    before = take_snapshot()
    with (
        pytest.raises(ZeroDivisionError),
        make_revert("toy-plain", "toy-dataclass", "toy-constant"),
    ):
        1 / 0  # noqa: B018
    assert_unchanged(before)


def test_objects_keep_their_identity_while_toggled() -> None:
    identity = id(forms.plain), id(forms.Forms), id(forms.Settings)
    with make_revert("toy-plain", "toy-method", "toy-dataclass"):
        assert (id(forms.plain), id(forms.Forms), id(forms.Settings)) == identity
        assert users.plain is forms.plain


def test_a_closure_that_the_collector_was_told_to_forget_changes_too() -> None:
    gc.freeze()
    try:
        with make_revert("toy-closure"):
            assert users.MADE_EARLY(100) == 95
        assert users.MADE_EARLY(100) == 105
        assert gc.get_freeze_count(), "and it stays forgotten"
    finally:
        gc.unfreeze()


def test_a_closure_made_while_toggled_is_fixed_afterwards() -> None:
    with make_revert("toy-closure"):
        made_inside = forms.outer(5)
        assert made_inside(100) == 95
    assert made_inside(100) == 105


def test_a_dataclass_keeps_its_other_fields_and_its_repr() -> None:
    with make_revert("toy-dataclass"):
        assert repr(forms.Settings("a", tags=["t"])) == "Settings(name='a', pages=32, tags=['t'])"
        assert forms.Settings("a") == forms.Settings("a", 32)
        assert forms.Settings("a").tags is not forms.Settings("a").tags
    assert repr(forms.Settings("a")) == "Settings(name='a', pages=16, tags=[])"


def test_nested_toggles_end_in_any_order() -> None:
    before = take_snapshot()
    first, second = make_revert("toy-plain"), make_revert("toy-same-function")
    first.__enter__()
    second.__enter__()
    assert forms.plain(3, 5) == 1006
    first.__exit__(None, None, None)
    assert forms.plain(3, 5) == 1030
    second.__exit__(None, None, None)
    assert forms.plain(3, 5) == 30
    assert_unchanged(before)


def test_the_same_toggle_twice_ends_with_the_second_exit() -> None:
    with make_revert("toy-plain"):
        with make_revert("toy-plain"):
            assert forms.plain(3, 5) == 6
        assert forms.plain(3, 5) == 6
        with pytest.raises(PatchConflictError, match="in two directions"):
            make_observation("toy-plain").__enter__()
    assert forms.plain(3, 5) == 30


def test_two_toggles_on_the_same_code_are_refused_and_change_nothing() -> None:
    before = take_snapshot()
    with pytest.raises(PatchConflictError, match=r"change the same code, sglang\.forms line"):
        make_revert("toy-plain", "toy-overlap").__enter__()
    assert_unchanged(before)
    with make_revert("toy-plain"):
        with pytest.raises(PatchConflictError), make_revert("toy-overlap"):
            pass
        assert forms.plain(3, 5) == 6
    assert_unchanged(before)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: make_revert("toy-plian"), UnknownToggleError, "near it: toy-plain"),
        (lambda: toggles.reverted(), UnknownToggleError, "name at least one"),
        (lambda: toggles.enabled("toy-plain", folders=FOLDER).__enter__(),
         ToggleNotApplicableError, "it is fixed there: that release has the fix"),
    ],
)  # fmt: skip
def test_wrong_toggles_raise(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_threads_toggle_independently() -> None:
    before = take_snapshot()
    errors: list[BaseException] = []
    start = threading.Barrier(4)

    def work(name: str, call: Callable[[], Any], buggy: Any) -> None:
        try:
            start.wait()
            for _ in range(50):
                with make_revert(name):
                    assert call() == buggy
        except BaseException as error:
            errors.append(error)

    chosen = [case for case in CASES if case[0] in ("toy-plain", "toy-method", "toy-super")]
    chosen.append(("toy-plain", lambda: forms.plain(3, 5), 30, 6))
    threads = [threading.Thread(target=work, args=(n, c, b)) for n, c, _, b in chosen[:4]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert_unchanged(before)


def test_observing_counts_exactly_and_changes_nothing() -> None:
    with make_observation("toy-plain") as observation:
        assert (users.use(3, 5), users.use(3, 5)) == (30, 30)
        assert observation.reach == 2
        count = lambda: [forms.plain(1, 1) for _ in range(2000)]  # noqa: E731
        threads = [threading.Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert observation.reach == 8002


def test_a_traceback_and_inspect_show_the_patched_line() -> None:
    with make_revert("toy-plain"):
        assert "doubled = 2" in inspect.getsource(forms.plain)
        assert "doubled = topk * 2" not in inspect.getsource(forms.plain)
        try:
            forms.plain(None, 1)
        except TypeError:
            shown = traceback.format_exc()
        assert "return rows * doubled" in shown
        assert "<unfix revert toy-plain sglang.forms>" in shown
    assert "doubled = topk * 2" in inspect.getsource(forms.plain)
