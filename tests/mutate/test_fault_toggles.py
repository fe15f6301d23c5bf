"""Saving a fault as a toggle that the registry takes, with the least code that locates it."""

from __future__ import annotations

from pathlib import Path

import pytest
import released
from memory import Memory
from small import format_code, make_faults

from harness.core.source_scopes import ModuleSource
from harness.fixes.matching.toggle_status import ToggleState, find_toggle_status
from harness.fixes.patch_plan import Direction, ToggleChoice
from harness.fixes.patch_plan import make_plan as plan
from harness.fixes.registry.schema import (
    CodeTarget,
    DeviceKind,
    Symptom,
    Toggle,
    ToggleEdit,
)
from harness.fixes.registry.toggle_catalogue import ToggleCatalogue
from harness.fixes.registry.toggle_reader import read_toggle
from harness.fixes.registry.toggle_writer import format_toggle
from harness.releases.source_trees import SourceTree
from harness.runs.mutate.fault_toggles import (
    KeepFaultError,
    OverlaySources,
    build_toggle,
    is_reversible_edit,
)
from harness.store.mutate.faults import MutationFault

NONE = ToggleCatalogue([])


def keep_fault(
    code: str, operator: str = "round-down", number: int = 0
) -> tuple[MutationFault, Toggle]:
    fault = make_faults(code, operator).faults[number]
    sources = Memory({"m": format_code(code)})
    return fault, build_toggle(fault, sources, "0.5.9", range_sources=[], registry=NONE)


def read_forms(asked: Toggle) -> tuple[str, str]:
    ((edit,),) = (variant.edits for variant in asked.variants)
    return edit.fixed, edit.buggy


ONCE = """
def f(n, m):
    a = cdiv(n, m) + 1
    return a
"""
TWICE = """
def f(n, m):
    a = g(cdiv(n, m))
    b = cdiv(n, m)
    return a + b
"""
ALIKE = """
def f(n, m):
    a = cdiv(n, m)
    first(a)
    a = cdiv(n, m)
    return second(a)
"""
# Characters that YAML and patterns treat specially: a colon, a hash, a dollar sign.
ODD = """
def f(n, m):
    a = {"#: é": cdiv(n["x: #"], m), "$A": 1}
    return a
"""
BLOCK = """
def f(n, m):
    if n:
        a = cdiv(n, m)
    else:
        a = cdiv(n, m)
    return a
"""


@pytest.mark.parametrize(
    ("code", "number", "fixed", "buggy"),
    [
        (ONCE, 0, "cdiv(n, m)", "n // m"),
        (TWICE, 0, "g(cdiv(n, m))", "g(n // m)"),
        (TWICE, 1, "b = cdiv(n, m)", "b = n // m"),
        (ALIKE, 0, "a = cdiv(n, m)\nfirst(a)", "a = n // m\nfirst(a)"),
        (ALIKE, 1, "first(a)\na = cdiv(n, m)", "first(a)\na = n // m"),
        (BLOCK, 1, "if n:\n    a = cdiv(n, m)\nelse:\n    a = cdiv(n, m)",
         "if n:\n    a = cdiv(n, m)\nelse:\n    a = n // m"),
    ],
)  # fmt: skip
def test_the_forms_are_the_least_code_that_tells_the_place(
    code: str, number: int, fixed: str, buggy: str
) -> None:
    _, asked = keep_fault(code, number=number)
    assert read_forms(asked) == (fixed, buggy)


def test_a_toggle_says_what_it_is() -> None:
    fault, asked = keep_fault(ONCE)
    assert asked.id == f"round-down-{fault.id}"
    assert asked.title == "Round down where up is right, in f"
    assert asked.symptom is Symptom.OUT_OF_BOUNDS
    assert asked.family == "m"
    assert asked.devices == (DeviceKind.CPU, DeviceKind.CUDA)
    assert "A partly filled last one is not counted." in asked.why
    assert [str(target) for target in asked.variants[0].targets] == ["m:f"]


def test_the_range_is_the_releases_that_have_the_code() -> None:
    other = {"m": format_code(ONCE.replace("cdiv", "up"))}
    mine = {"m": format_code(ONCE)}
    (fault,) = make_faults(ONCE, "round-down").faults

    def ranges(*there: tuple[str, dict[str, str]], version: str | None = "0.5.12") -> list[str]:
        others = [Memory(modules, version) for version, modules in there]
        toggle = build_toggle(
            fault, Memory(mine, version), version or "x", range_sources=others, registry=NONE
        )
        return [variant.releases for variant in toggle.variants]

    assert ranges() == [">=0.5.12"]
    assert ranges(version=None) == [">=0"]  # a checkout without a version
    assert ranges(("0.5.9", mine), ("0.5.10", mine), ("0.5.23", mine)) == [">=0.5.9"]
    assert ranges(("0.5.9", other), ("0.5.13", mine), ("0.5.14", other)) == [">=0.5.12,<0.5.14"]
    assert ranges(("0.5.9", mine), ("0.5.10", {}), ("0.5.14", other), ("0.5.23", mine)) == [
        ">=0.5.9,<0.5.10",
        ">=0.5.12,<0.5.14",
        ">=0.5.23",
    ]


@pytest.mark.parametrize(
    ("edit", "taken"),
    [
        (ToggleEdit("cdiv(n,  m)", "n // m", "m:f"), True),
        (ToggleEdit("cdiv(n, m)", "n // m", "m:f"), False),  # reverting it would lose a space
        (ToggleEdit("cdiv(n,  m)", "n / m", "m:f"), False),  # another fault
        (ToggleEdit("cdiv(n,  m)", "n // m", "m:g"), False),  # another place
        (ToggleEdit("g(n, m)", "n // m", "m:f"), False),
        (ToggleEdit("cdiv($A,  m)", "$A // m", "m:f"), False),  # its own toggle name
    ],
)
def test_two_forms_hold_if_they_give_just_the_two_texts(edit: ToggleEdit, taken: bool) -> None:
    code = "def f(n, m):\n    return cdiv(n,  m)\n"
    (fault,) = make_faults(code, "round-down").faults
    assert is_reversible_edit(edit, fault, Memory({"m": code}), "0.5.9") is taken


def test_a_fault_of_another_text_is_refused() -> None:
    (fault,) = make_faults(ONCE, "round-down").faults
    moved = Memory({"m": "import other\n" + format_code(ONCE)})
    with pytest.raises(KeepFaultError, match="was made for another text of m"):
        build_toggle(fault, moved, "0.5.9", range_sources=[], registry=NONE)
    with pytest.raises(KeepFaultError, match=r"0\.5\.9 has no module m"):
        build_toggle(fault, Memory({"n": ""}), "0.5.9", range_sources=[], registry=NONE)


@pytest.mark.parametrize(
    ("code", "operator"),
    [
        (ODD, "round-down"),
        ("def f(self, n):\n    start(n)\n    self.table.zero_()\n    end(n)\n", "keep-stale"),
    ],
)
def test_a_file_reads_back_as_the_toggle(code: str, operator: str, tmp_path: Path) -> None:
    fault, toggle = keep_fault(code, operator)
    assert write_and_read(toggle, tmp_path) == toggle
    assert both_ways(toggle, fault, Memory({"m": format_code(code)}))


def write_and_read(asked: Toggle, folder: Path) -> Toggle:
    path = folder / f"{asked.id}.yaml"
    path.write_text(format_toggle(asked), encoding="utf-8")
    return read_toggle(path)


def both_ways(asked: Toggle, fault: MutationFault, sources: Memory | SourceTree) -> bool:
    """Return whether the registry's own plan applies and reverts the fault, byte for byte."""
    source = sources.read(fault.module)
    assert source is not None
    assert find_toggle_status(asked, sources).state is ToggleState.FIXED
    (there,) = plan([ToggleChoice(asked, Direction.REVERT)], sources, "0.5.23").modules
    changed = OverlaySources(sources, ModuleSource(source.module, source.path, there.text))
    assert find_toggle_status(asked, changed).state is ToggleState.BUGGY
    (back,) = plan([ToggleChoice(asked, Direction.ENABLE)], changed, "0.5.23").modules
    return there.text == fault.apply_to(source.text) and back.text == source.text


EVERY = 80


def test_faults_of_a_release_become_files_that_work_both_ways(tmp_path: Path) -> None:
    sources, registry = released.load_sources(released.NEWEST), released.load_registry()
    faults = released.generate_for_release(released.NEWEST).faults[::EVERY]
    families = {toggle.family for toggle in registry}
    assert len(faults) >= 8
    taken = 0
    for fault in faults:
        try:
            built = build_toggle(
                fault, sources, released.NEWEST, range_sources=[sources], registry=registry
            )
        except KeepFaultError:  # the same lines stand elsewhere
            continue
        module = CodeTarget.parse(fault.target).module.rpartition(".")[2].strip("_")
        assert built.family in families | {module}
        assert both_ways(write_and_read(built, tmp_path), fault, sources), fault
        taken += 1
    assert taken >= len(faults) * 0.9
