"""Targets: the meaning of each kind of word, on small releases and on real ones."""

from __future__ import annotations

import msgspec
import pytest
import released
from memory import Memory, make_edit_toggle, make_toggle, make_variant
from small import format_code

from harness.core.cpp_tokens import is_cpp_path
from harness.core.errors import UnfixError
from harness.fixes.matching.toggle_status import ToggleState, find_toggle_status
from harness.fixes.registry.schema import Toggle
from harness.fixes.registry.toggle_catalogue import ToggleCatalogue
from harness.runs.mutate.target_selection import select_targets

KERNEL = "sglang.kernels.ops.rows"
BACKEND = "sglang.srt.backend"
SOURCES = Memory(
    {
        BACKEND: format_code(
            """
            from sglang.kernels.ops.rows import copy_rows, row_kernel, deep_kernel
            from sglang.srt.sizes import row_width, shown
            from elsewhere import other_width

            LIMIT = 4

            def helper(rows):
                return rows

            def apart(rows):
                return rows

            class Backend:
                def plan(self, rows):
                    def inner():
                        return rows * 2
                    self.fill(helper(rows))
                    copy_rows(rows, row_width(rows), shown(rows), other_width(rows))

                def fill(self, rows):
                    deep_kernel[(1,)](rows)

                def alone(self, rows):
                    return rows
            """
        ),
        KERNEL: format_code(
            """
            import triton

            @triton.jit
            def part(rows):
                return rows

            @triton.jit
            def row_kernel(rows):
                return part(rows)

            @triton.jit
            def deep_kernel(rows):
                return rows

            def copy_rows(rows, *more):
                row_kernel[(1,)](rows)

            def unrelated(rows):
                return rows
            """
        ),
        "sglang.srt.sizes": "def row_width(rows): return rows\ndef shown(rows): return rows\n",
        "sglang.srt.empty": "LIMIT = 1\n",
    }
)


def of_family(fix: Toggle, family: str, name: str) -> Toggle:
    return msgspec.structs.replace(fix, id=name, family=family)


PLAN = of_family(
    make_edit_toggle("rows * 2", "rows", f"{BACKEND}:Backend.plan.inner"), "plans", "plan-fix"
)
ALONE = of_family(
    make_edit_toggle("return rows", "return 1", f"{BACKEND}:Backend.alone"), "plans", "alone-fix"
)
PART = of_family(make_edit_toggle("return rows", "return 1", f"{KERNEL}:part"), "parts", "part-fix")
SERVED = of_family(
    make_edit_toggle("return rows", "return 1", f"{BACKEND}:apart"), "engine", "served-fix"
)
LIMIT = of_family(make_edit_toggle("LIMIT = 4", "LIMIT = 5", BACKEND), "limits", "limit-fix")
LATER = of_family(
    make_toggle(make_variant((("return rows", "return 1"),), f"{BACKEND}:apart", ">=0.5.10")),
    "laters",
    "later-fix",
)
REGISTRY = ToggleCatalogue([PLAN, ALONE, PART, SERVED, LIMIT, LATER])


def read_words(*asked: str) -> list[str]:
    return [
        f"{target.module.rpartition('.')[2]}:{target.qualname}"
        for target in select_targets(asked, SOURCES, REGISTRY)
    ]


OF_PLAN = [
    "backend:Backend.plan",
    "backend:Backend.fill",
    "rows:deep_kernel",
    "backend:helper",
    "rows:copy_rows",
    "rows:row_kernel",
    "rows:part",
    "sizes:row_width",
]


BACKEND_FUNCTIONS = ["helper", "apart", "Backend.plan", "Backend.fill", "Backend.alone"]


@pytest.mark.parametrize(
    ("word", "names"),
    [
        (BACKEND, BACKEND_FUNCTIONS),
        (f"{BACKEND}:helper", ["helper"]),
        (f"{BACKEND}:Backend.plan", ["Backend.plan"]),
        (f"{BACKEND}:Backend.plan.inner", ["Backend.plan"]),
        (f"{BACKEND}:Backend.plan.<locals>.inner", ["Backend.plan"]),
        (f"{BACKEND}:Backend", ["Backend.plan", "Backend.fill", "Backend.alone"]),
        ("served-fix", ["apart"]),
    ],
)
def test_a_word_stands_for_outermost_functions(word: str, names: list[str]) -> None:
    assert read_words(word) == [f"backend:{name}" for name in names]


def test_a_toggle_stands_for_what_its_function_calls_and_launches_too() -> None:
    assert read_words("plan-fix")[0] == OF_PLAN[0]
    assert sorted(read_words("plan-fix")) == sorted(OF_PLAN)
    assert sorted(read_words("plans")) == sorted([*OF_PLAN, "backend:Backend.alone"])  # the family
    kernel = of_family(
        make_edit_toggle("part(rows)", "rows", f"{KERNEL}:row_kernel"), "parts", "row-fix"
    )
    found = select_targets(["row-fix"], SOURCES, ToggleCatalogue([kernel]))
    # A kernel also selects the function that launches it.
    assert [target.qualname for target in found] == ["row_kernel", "part", "copy_rows"]


def test_no_word_stands_for_every_family_but_the_servers() -> None:
    assert read_words() == list(dict.fromkeys(read_words("plans") + read_words("parts")))
    assert "backend:apart" not in read_words()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("plan", "'plan' is no module of this release, no family, no toggle; near it: plans"),
        ("sglang.srt.backends", f"near it: {BACKEND}"),
        (f"{BACKEND}:Backend.plans", f"defines no Backend.plans; near it: {BACKEND}:Backend.plan"),
        ("sglang.srt.empty", "sglang.srt.empty defines no function"),
        ("limits", "'limits' changes no function of this release"),
        ("later-fix", "'later-fix' changes no function of this release"),
        ("zzzz", "'zzzz' is no module of this release, no family, no toggle"),
    ],
)
def test_a_word_that_stands_for_nothing_is_refused(word: str, message: str) -> None:
    with pytest.raises(UnfixError) as caught:
        read_words(word)
    assert message in str(caught.value)


@pytest.mark.parametrize("release", ["0.5.18", "0.5.23"])
def test_the_families_hold_every_function_that_their_toggles_change(release: str) -> None:
    found = {str(target) for target in released.list_targets(release)}
    changed = {
        str(site.target)
        for toggle in released.load_registry()
        if toggle.family != "engine"
        for status in [find_toggle_status(toggle, released.load_sources(release))]
        if status.state in (ToggleState.FIXED, ToggleState.BUGGY)
        for site in status.sites
        if site.target.qualname and not is_cpp_path(site.target.module)
    }
    assert len(changed) >= 10
    for target in changed:
        assert any(f"{target}.".startswith(f"{function}.") for function in found), target
