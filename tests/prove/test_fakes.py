"""Guards that do not notice their bug and try to be called proven: each gets the verdict it earns.

The guards are in `fakes/`, a file a kind. A guard with parameters is one fake: all of its cells
get one of the verdicts here. `docs/prove.md` names the few that no runner can refuse.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from proving import Prove, by_guard

from harness.core import paths, write_confinement
from harness.store.record_files import read_record_text

FOLDER = Path(__file__).parent / "fakes"
# The sides end alike: both pass or both fail.
ALIKE = "toothless or broken"
# Runs end differently, for a reason that is not the side. Where runs share nothing, the rates of
# these fakes let one of them be proven in some 18,000 calls, so none may be.
BY_CHANCE = "toothless or broken or flaky"
NO_NAMESPACES = not write_confinement.can_make_namespaces()
CAN_CONFINE = write_confinement.can_confine()
# Elsewhere one try in 119 is proven, in 17 where runs share memory (docs/prove.md). A cell that
# is proven there is tried ten times more, and may be proven three times again.
MORE_TRIES, PROVEN_AGAIN = 10, 3
OPTIONS = ("--json", "-j", "3", "--memory", "0.5")
SIDES = {
    "node_name": "toothless",
    "node_keywords": "toothless",
    "current_test": "toothless",
    "parameter_called_like_a_side": ALIKE,
    "cell_as_a_fixture": ALIKE,
    "address_of_what_it_makes": BY_CHANCE,
    "references_to_none": BY_CHANCE,
    "count_of_objects": BY_CHANCE,
    "names_in_the_environment": "toothless",
    "command_line": "toothless",
    "source_without_the_code": "broken",
    "code_in_a_fixture": "unreached",
    "prints_messages_of_the_protocol": "toothless",
    "writes_a_result_and_exits": "broken",
    "changes_the_judges": "toothless",
    "changes_pytest": "toothless",
}
REPORTS = {
    "asserts_nothing": "toothless",
    "catches_its_assertion": "toothless",
    "coroutine": "broken",
    "returns_a_coroutine": "unreached",
    "yields": "broken",
    "yields_in_a_class": "broken",
    "exits_in_a_thread": "toothless",
    "fails_in_a_child": "toothless",
    "runs_the_code_in_teardown": "toothless",
    "fails_in_a_destructor": "toothless",
    "warns": "toothless",
    "fails_an_assertion_of_the_harness": "broken",
    "skips_when_buggy": "broken",
    "says_n_a_when_buggy": "broken",
    "expected_to_fail": "broken",
    "known_to_fail_and_not_run": "broken",
    "expects_to_fail_when_buggy": "broken",
    "fails_in_a_subtest_on_both_sides": "broken",
    "has_no_parameters": "broken",
    "closes_its_files_and_exits_when_buggy": "broken",
    "exits_by_name": "toothless",
    "has_a_name_error_when_buggy": "broken",
    "raises_a_group_when_buggy": "broken",
    "replaces_the_hook_of_threads": "toothless",
    "makes_all_its_reports_red": "broken",
    "calls_the_code_of_another_toggle": "unreached",
    "leaves_a_process_that_fails": "toothless",
    "ends_the_session_when_buggy": "broken",
}
DRAWS = {
    "found_by_the_longer_search": "flaky",
    "draws_otherwise_when_fixed": "undrawn",
    "draws_more_when_fixed": "flaky",
    "rejects_its_example_when_fixed": "undrawn",
    "draws_otherwise_and_fails_by_chance": f"{BY_CHANCE} or undrawn",
    "rejects_its_written_example_when_fixed": "undrawn",
    "ends_before_its_draws_when_fixed": "undrawn",
    "catches_what_ends_its_draws": "undrawn",
    "rejects_all_when_fixed": "broken",
    "has_no_examples": "broken",
    "runs_no_examples": "broken",
    "reads_its_settings": BY_CHANCE,
    "changes_its_settings": "toothless",
    "has_a_seed_of_its_own": ALIKE,
    "has_a_database": BY_CHANCE,
    "fails_at_its_hundredth_call": BY_CHANCE,
    "dies_at_its_hundredth_call": "flaky",
    "raises_what_says_that_nothing_ran": "broken",
    "says_that_nothing_ran_half_of_the_time": BY_CHANCE,
    "written_example_fails_by_its_process": BY_CHANCE,
}
STATE = {
    "fails_from_its_second_run_on": "toothless",
    "fails_from_its_second_run_on_in_a_fixed_place": BY_CHANCE,
    "pytest_s_own_folder": "toothless",
    "mode_of_its_own_file": BY_CHANCE,
    "memory_that_forks_share": BY_CHANCE,
    "compiled_kernels": "toothless",
    "shared_memory_of_a_name": BY_CHANCE if NO_NAMESPACES and not CAN_CONFINE else ALIKE,
    "shared_memory_of_a_key": BY_CHANCE if NO_NAMESPACES else "toothless",
    "shared_memory_by_an_open_folder": "broken" if CAN_CONFINE else BY_CHANCE,
    "process_of_an_earlier_run": "toothless",
    "global_of_an_earlier_run": "toothless",
    "parent_of_an_earlier_run": BY_CHANCE,
    "random_numbers": BY_CHANCE,
    "number_of_its_process": BY_CHANCE,
    "all_of_its_environment": BY_CHANCE,
    "seeds_itself_by_its_folder": BY_CHANCE,
}
IMPORTS = {
    "code_at_import": "broken",
    "code_in_a_parameter": "broken",
    "answer_of_its_import": "broken",
    "answer_in_a_class": "broken",
    "answer_in_a_default": "broken",
    "answer_in_a_parameter": "broken",
    "copy_of_a_constant": "broken",
    "twice_a_constant": "broken",
    "constant_in_a_class": "broken",
    "constant_by_its_name": "broken",
    "object_of_its_import": "broken",
}
COPIES = dict.fromkeys(
    (
        "reloads_the_module",
        "imports_the_module_again",
        "imports_the_file_by_another_name",
        "runs_the_file",
        "runs_the_text",
        "reads_the_text",
        "runs_the_bytecode",
        "copies_the_package",
        "asks_a_child",
        "asks_a_spawned_process",
    ),
    "broken",
)
SNAPSHOTS = dict.fromkeys(("all_names", "signature", "copied_function"), "broken")
NAMES = {"made_name": "broken"}
FAKES = {
    "copies": COPIES,
    "snapshots": SNAPSHOTS,
    "names": NAMES,
    "imports": IMPORTS,
    "sides": SIDES,
    "reports": REPORTS,
    "draws": DRAWS,
    "state": STATE,
}
BY_NAME = {name: verdict for kind in FAKES.values() for name, verdict in kind.items()}
Verdicts = dict[str, dict[str, str]]  # by the fake, and by its cell


@pytest.fixture(scope="module")
def prove(tmp_path_factory: pytest.TempPathFactory) -> Prove:
    """All fakes, with a home of their own."""
    return Prove(tmp_path_factory.mktemp("prove"))


def run_at_home(prove: Prove, *words: str) -> subprocess.CompletedProcess[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(prove.root / "home"))
        (prove.root / ".releases" / "cuda-builds").mkdir(parents=True, exist_ok=True)
        for name in ("XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TMPDIR"):
            patch.delenv(name, raising=False)
        return prove.run(*OPTIONS, *words)


@pytest.fixture(scope="module")
def cells(prove: Prove) -> dict[str, dict[str, Any]]:
    """Run all fakes at once."""
    for kind in FAKES:
        shutil.copy(FOLDER / f"{kind}.py", prove.guards / f"test_{kind}.py")
    done = run_at_home(prove)
    name = f"*{str(prove.root).replace('/', '-')[-40:]}*"  # of each file that a fake writes
    if CAN_CONFINE:
        assert not list(prove.root.rglob(name))
    for folder in ("/tmp", "/var/tmp", "/dev/shm"):
        for left in Path(folder).glob(name):
            left.unlink()
    assert done.returncode == 1, done.stderr
    return by_guard(json.loads(done.stdout))


@pytest.fixture(scope="module")
def verdicts(cells: dict[str, dict[str, Any]]) -> Verdicts:
    found: Verdicts = defaultdict(dict)
    for name, cell in cells.items():
        found[name.partition("[")[0]][name] = cell["verdict"]
    return found


def test_at_least_thirty_are_tried(verdicts: Verdicts) -> None:
    assert set(verdicts) == set(BY_NAME)
    assert len(BY_NAME) >= 30


@pytest.mark.parametrize("name", BY_NAME)
def test_a_fake_gets_the_verdict_it_earns(
    prove: Prove, cells: dict[str, dict[str, Any]], verdicts: Verdicts, name: str
) -> None:
    possible = BY_NAME[name].split(" or ")
    others = {cell: found for cell, found in verdicts[name].items() if found not in possible}
    if "flaky" in possible and (NO_NAMESPACES or not CAN_CONFINE):
        others = {
            cell: found
            for cell, found in others.items()
            if found != "proven" or count_proven(prove, cells[cell]["guard"]) > PROVEN_AGAIN
        }
    assert others == {}


def test_a_cell_says_why_it_is_flaky_undrawn_or_broken(cells: dict[str, dict[str, Any]]) -> None:
    words = {
        "flaky": (" with the fix reverted and ", "FlakyFailure"),
        "undrawn": ("nothing was compared",),
    }
    assert {cell["verdict"] for cell in cells.values()} >= words.keys()
    for name, cell in cells.items():
        assert any(each in cell["why"] for each in words.get(cell["verdict"], ("",))), name
    assert "is no report of the bug" in cells["has_a_name_error_when_buggy"]["why"]
    assert not any("is no report" in cells[name]["why"] for name in ("coroutine", "all_names"))


def count_proven(prove: Prove, guard: str) -> int:
    """Try one guard again, and return how often it is proven."""
    function = str(prove.guards / guard.partition("[")[0])
    again = [json.loads(run_at_home(prove, "--", function).stdout) for _ in range(MORE_TRIES)]
    found = [c["verdict"] for run in again for c in run["cells"] if c["guard"] == guard]
    assert len(found) == MORE_TRIES
    return found.count("proven")


def test_of_a_thousand_recorded_tries_one_in_a_hundred_is_proven_at_most() -> None:
    """`bench/cases/false_proofs.py` measures it."""
    root = paths.project_folder()
    record = json.loads(read_record_text(root / "bench" / "recorded" / "false-proofs.json.xz"))
    assert record["tries"] >= 1000
    for kind in ({"": record} | record["by kind"]).values():
        assert kind["proven"] <= kind["tries"] / 100
