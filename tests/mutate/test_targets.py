"""Targets: what each kind of word stands for, on small releases and on the real ones."""

from __future__ import annotations

import pytest
import released
from memory import Memory, edit, toggle, variant
from small import text

from harness.core.errors import UnfixError
from harness.fixes.matching.toggle_status import ToggleState, find_toggle_status
from harness.fixes.registry.schema import CodeTarget, Toggle
from harness.fixes.registry.toggle_catalogue import ToggleCatalogue
from harness.runs.mutate.target_selection import read_functions, select_targets

KERNEL = "sglang.kernels.ops.rows"
BACKEND = "sglang.srt.backend"
SOURCES = Memory(
    {
        BACKEND: text(
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
        KERNEL: text(
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


def of_family(asked: Toggle, family: str, name: str) -> Toggle:
    return Toggle(
        id=name,
        title=asked.title,
        family=family,
        symptom=asked.symptom,
        devices=asked.devices,
        variants=asked.variants,
    )


PLAN = of_family(edit("rows * 2", "rows", f"{BACKEND}:Backend.plan.inner"), "plans", "plan-fix")
ALONE = of_family(edit("return rows", "return 1", f"{BACKEND}:Backend.alone"), "plans", "alone-fix")
PART = of_family(edit("return rows", "return 1", f"{KERNEL}:part"), "parts", "part-fix")
SERVED = of_family(edit("return rows", "return 1", f"{BACKEND}:apart"), "engine", "served-fix")
LIMIT = of_family(edit("LIMIT = 4", "LIMIT = 5", BACKEND), "limits", "limit-fix")
LATER = of_family(
    toggle(variant((("return rows", "return 1"),), f"{BACKEND}:apart", ">=0.5.10")),
    "laters",
    "later-fix",
)
REGISTRY = ToggleCatalogue([PLAN, ALONE, PART, SERVED, LIMIT, LATER])


def words(*asked: str) -> list[str]:
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


def test_a_module_is_its_outermost_functions() -> None:
    assert words(BACKEND) == [
        "backend:helper",
        "backend:apart",
        "backend:Backend.plan",
        "backend:Backend.fill",
        "backend:Backend.alone",
    ]


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("helper", ["backend:helper"]),
        ("Backend.plan", ["backend:Backend.plan"]),
        ("Backend.plan.inner", ["backend:Backend.plan"]),
        ("Backend.plan.<locals>.inner", ["backend:Backend.plan"]),
        ("Backend", ["backend:Backend.plan", "backend:Backend.fill", "backend:Backend.alone"]),
    ],
)
def test_a_qualified_name_is_the_outermost_function(word: str, wanted: list[str]) -> None:
    assert words(f"{BACKEND}:{word}") == wanted


def test_a_toggle_brings_what_its_function_calls_and_launches_and_no_more() -> None:
    found = words("plan-fix")
    assert found[0] == OF_PLAN[0]
    assert sorted(found) == sorted(OF_PLAN)


def test_a_family_is_all_its_toggles() -> None:
    assert sorted(words("plans")) == sorted([*OF_PLAN, "backend:Backend.alone"])


def test_a_kernel_brings_what_launches_it() -> None:
    kernel = of_family(edit("part(rows)", "rows", f"{KERNEL}:row_kernel"), "parts", "row-fix")
    found = select_targets(["row-fix"], SOURCES, ToggleCatalogue([kernel]))
    assert [target.qualname for target in found] == ["row_kernel", "part", "copy_rows"]


def test_no_word_is_every_family_but_the_servers() -> None:
    assert words() == list(dict.fromkeys(words("plans") + words("parts")))
    assert "backend:apart" not in words()
    assert "backend:apart" in words("served-fix")


def test_words_come_in_their_order_and_a_function_once() -> None:
    assert words(f"{BACKEND}:Backend.alone", f"{BACKEND}:helper", BACKEND)[:3] == [
        "backend:Backend.alone",
        "backend:helper",
        "backend:apart",
    ]


@pytest.mark.parametrize(
    ("word", "told"),
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
def test_a_word_that_stands_for_nothing_is_refused(word: str, told: str) -> None:
    with pytest.raises(UnfixError) as caught:
        words(word)
    assert told in str(caught.value)


def test_the_code_of_targets_is_each_function_once() -> None:
    asked = [
        CodeTarget(BACKEND, "Backend"),
        CodeTarget(KERNEL, "part"),
        CodeTarget(BACKEND, "Backend.fill"),
    ]
    found = [(f.module.source.module, f.qualname) for f in read_functions(asked, SOURCES)]
    plain = ["Backend.plan", "Backend.fill", "Backend.alone"]
    assert found == [*((BACKEND, name) for name in plain), (KERNEL, "part")]
    with pytest.raises(UnfixError, match="no module gone"):
        list(read_functions([CodeTarget("gone", "f")], SOURCES))


@pytest.mark.parametrize("release", ["0.5.18", "0.5.23"])
def test_the_families_hold_every_function_that_their_toggles_change(release: str) -> None:
    found = {str(target) for target in released.targets(release)}
    there = [
        site.target
        for asked in released.registry()
        if asked.family != "engine"
        for finding in [find_toggle_status(asked, released.sources(release))]
        if finding.state in (ToggleState.FIXED, ToggleState.BUGGY)
        for site in finding.sites
        if site.target.qualname
    ]
    assert len(there) >= 10
    for target in there:
        outer = {f"{target.module}:{part}" for part in prefixes(target.qualname)}
        assert outer & found, target


def prefixes(qualname: str) -> list[str]:
    parts = qualname.split(".")
    return [".".join(parts[: n + 1]) for n in range(len(parts))]
