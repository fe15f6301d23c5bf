"""The suites of a fault's family run it before the lines of all other guards are recorded."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import released
from toy_release import Mutate, by_id

from harness.core import paths
from harness.runs.mutate.fault_selection import find_families, find_suites

NEAR = """
from sglang.srt import sizes

def test_flag():
    assert sizes.chosen(True) == 1

def test_total():
    sizes.total(4)
"""
FAR = "from sglang.srt import sizes\n\ndef test_sum():\n    assert sizes.total(4) == 6\n"


def write_suites(mutate: Mutate) -> None:
    mutate.guards.unlink()
    for name, text in (("near", NEAR), ("far", FAR)):
        (mutate.guards.parent / name).mkdir()
        (mutate.guards.parent / name / f"test_{name}.py").write_text(text)


def test_other_suites_are_not_recorded_if_a_faults_own_kill_it(mutate: Mutate) -> None:
    write_suites(mutate)
    fault = mutate.fault("chosen", "if flag", "if not flag")
    run = mutate.run("--examples", "1", FAMILIES=json.dumps({fault.target: "near"}))
    assert by_id(run)[fault.id]["fate"] == "killed"
    names = {guard["guard"].partition("::")[2] for guard in run["guards"]}
    assert names == {"test_flag", "test_total"}


def test_a_fault_is_tried_first_by_its_own_suite_and_then_by_the_others(mutate: Mutate) -> None:
    write_suites(mutate)
    by_others = mutate.fault("total", "found += index", "found -= index")
    by_own = mutate.fault("chosen", "if flag", "if not flag")
    unread = mutate.fault("unread", "rows + ROOM", "rows - ROOM")
    survivor = mutate.fault("chosen", "return 2", "return 3")
    targets = {fault.target: "near" for fault in mutate.faults}
    run = mutate.run("--examples", "1", FAMILIES=json.dumps(targets))
    names = [fated["fault"]["id"] for fated in run["fates"]]
    assert names[0] == by_own.id  # before what only another suite kills
    fates = by_id(run)
    assert (fates[by_others.id]["fate"], fates[by_others.id]["by"].partition("::")[2]) == (
        "killed", "test_sum"
    )  # fmt: skip
    assert fates[unread.id]["fate"] == "unreached"
    assert fates[survivor.id]["fate"] == "unreached"
    assert len(run["fates"]) == 4
    again = mutate.run("--examples", "1", FAMILIES=json.dumps(targets))  # all lines are known
    assert {name: fated["fate"] for name, fated in by_id(again).items()} == {
        name: fated["fate"] for name, fated in fates.items()
    }


def test_a_familys_suites_are_those_with_guards_of_its_toggles() -> None:
    registry, suites = released.load_registry(), paths.project_folder() / "suites"
    assert find_suites({"req_to_token"}, registry, suites) == {"req_to_token", "pool_sizing"}
    assert find_suites({"kv_indices"}, registry, suites) == {"kv_indices"}


def test_families_are_those_of_the_faults_alone() -> None:
    sources, registry = released.load_sources("0.5.23"), released.load_registry()
    target = "sglang.srt.mem_cache.allocation_sizing:get_alloc_page_size"
    fault: Any = SimpleNamespace(target=target)
    assert find_families([fault], sources, registry) == {target: "req_to_token"}
