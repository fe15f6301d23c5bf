"""A run as a whole: collection, selection, shards, repetitions, and releases without toggles."""

from __future__ import annotations

import json

from proving import Prove, by_guard

from harness.guards.verdicts import REQUIRED_FAILURES, REQUIRED_PASSES


def test_nothing_collected_is_red(prove: Prove) -> None:
    prove.write("def test_guards_nothing():\n    pass\n")
    done = prove.run()
    assert done.returncode == 1
    assert "no guard applied: nothing is proven" in done.stdout + done.stderr
    summary, first, *rest = done.stdout.strip().splitlines()
    assert summary.startswith("no cells")
    assert "pytest collects no guard" in first
    assert len(rest) < 5, done.stdout


def test_all_not_applicable_is_red(prove: Prove) -> None:
    prove.write(
        "@guards('toy-plain')\ndef test_away():\n    skip_not_applicable('no such backend')\n"
    )
    assert prove.run().returncode == 1


def test_a_release_that_does_not_start_is_red(prove: Prove) -> None:
    prove.write("", "conftest.py", head="import os\nos._exit(7)\n")
    prove.write("@guards('toy-plain')\ndef test_it():\n    assert not buggy()\n")
    done = prove.run()
    assert done.returncode == 3
    assert "ended before it could begin (exit code 7)" in done.stderr


def test_pytest_chooses_the_guards(prove: Prove) -> None:
    prove.write(
        "@guards('toy-plain')\ndef test_one():\n    assert not buggy()\n"
        "@guards('toy-plain')\ndef test_other():\n    pass\n"
        "@guards('toy-default')\ndef test_third():\n    assert forms.with_default(1) == 8\n"
    )
    cells = prove.cells("-k", "one")
    assert set(cells) == {"one"}
    assert cells["one"]["moment"] == "live"
    assert set(prove.cells(names=("toy-default",))) == {"third"}
    assert prove.run("-k", "one").returncode == 0


def test_shards_are_all_of_it_and_none_twice(prove: Prove) -> None:
    names = [f"guard_{number}" for number in range(7)]
    text = "@guards('toy-plain')\ndef test_{}():\n    assert not buggy()\n"
    prove.write("".join(map(text.format, names)))
    parts = [set(prove.cells("--shard", f"{part}/3")) for part in (1, 2, 3)]
    assert sorted(name for part in parts for name in part) == names
    last = prove.again("report")
    assert last.returncode == 1
    assert "shard 1/3" in last.stdout, "a report of one shard is not green"
    ids = [run["id"] for run in json.loads(prove.again("report", "--list", "--json").stdout)]
    merged = prove.again("report", *ids, "--json")
    assert merged.returncode == 0
    assert json.loads(merged.stdout)["counts"] == {"proven": 7}


def test_failed_runs_again_what_was_not_proven_or_not_collected(prove: Prove) -> None:
    guard = "@guards('toy-plain')\ndef test_{}():\n    {}\n"
    torn = guard.format("torn", "buggy()")
    prove.write(guard.format("good", "assert not buggy()") + guard.format("bad", "buggy()"))
    prove.write("import no_such_module\n" + torn, "test_torn.py")
    done = prove.run("--json")
    run = json.loads(done.stdout)
    assert done.returncode == 1
    assert {name: cell["verdict"] for name, cell in by_guard(run).items()} == {
        "good": "proven",
        "bad": "toothless",
    }
    assert any("test_torn.py" in problem for problem in run["problems"])
    prove.write(guard.format("good", "1 / 0") + guard.format("bad", "assert not buggy()"))
    prove.write(torn, "test_torn.py")
    done = prove.again("prove", "--failed", "--json")
    assert done.returncode == 1
    assert {name: cell["verdict"] for name, cell in by_guard(json.loads(done.stdout)).items()} == {
        "bad": "proven",
        "torn": "toothless",
    }


def test_an_example_is_run_ahead_of_the_other_side_s_first_look(prove: Prove) -> None:
    """There are seven processes; in the first applied one it comes before all else."""
    notes = prove.shared / "seen"
    prove.write(
        "@guards('toy-plain')\n@given(n=st.integers(0, 2**40))\ndef test_it(n):\n"
        "    note('seen', f'{buggy()} {os.getpid()} {n}\\n')\n"
        "    assert not (buggy() and n > 999_999)\n"
    )
    cell = prove.cells("-j", "1", "--seed", "0")["it"]
    assert cell["verdict"] == "proven"
    assert cell["order"][0] == "buggy", "with another seed, the search comes first"
    drawn: dict[str, dict[str, list[int]]] = {"True": {}, "False": {}}
    for bad, process, number in map(str.split, notes.read_text().splitlines()):
        drawn[bad].setdefault(process, []).append(int(number))
    assert len(drawn["True"]) == REQUIRED_FAILURES
    assert len(drawn["False"]) == REQUIRED_PASSES
    first, *more = drawn["False"].values()
    assert first[0] == 1_000_000
    assert len(first) > 40
    assert more == [[1_000_000]] * 2


def test_lifecycle_runs_each_guard_as_the_release_is(prove: Prove) -> None:
    prove.write(
        "@guards('toy-plain')\ndef test_it():\n    assert forms.plain(1, 2) == 4\n"
        "@guards('toy-plain')\ndef test_differs():\n    assert forms.plain(1, 2) == 2\n"
    )
    cells = prove.cells(kind="lifecycle")
    assert cells["it"]["verdict"] == "has the fix"
    assert cells["differs"]["verdict"] == "differs"
    assert list(cells["it"]["sides"]) == ["as is"]


def test_a_side_has_the_stand_ins_that_computed_in_it(prove: Prove) -> None:
    prove.write(
        "from harness.sanitizer.device.record import RECORD\n"
        "@guards('toy-plain')\ndef test_it():\n"
        "    RECORD.count_stand_in('sgl_kernel.toy')\n"
        "    assert not buggy()\n"
    )
    sides = prove.cells()["it"]["sides"]
    assert [side["stand_ins"] for side in sides.values()] == [{"sgl_kernel.toy": 1}] * len(sides)


def orders_of(prove: Prove, *words: str) -> tuple[dict[str, list[str]], int]:
    """Return the order of each guard's sides by its name, and the seed that the run stores."""
    run = json.loads(prove.run("--json", "-j", "1", *words).stdout)
    assert {cell["verdict"] for cell in run["cells"]} == {"proven"}
    names = [cell["guard"].partition("::")[2] for cell in run["cells"]]
    orders = [cell["order"] for cell in run["cells"]]
    return dict(zip(names, orders, strict=True)), run["settings"]["seed"]


def test_the_order_of_the_sides_is_drawn_by_a_seed_that_the_run_stores(prove: Prove) -> None:
    """It depends on the seed and the guard, not on what else is run."""
    guard = "@guards('toy-plain')\ndef test_{}():\n    assert not buggy()\n"
    prove.write("".join(map(guard.format, range(6))))
    orders, stored = orders_of(prove, "--seed", "3")
    assert stored == 3
    assert len(orders) == 6
    assert {tuple(sorted(set(order))) for order in orders.values()} == {("buggy", "fixed")}
    assert len({tuple(order) for order in orders.values()}) > 2
    assert {order[0] for order in orders.values()} == {"buggy", "fixed"}
    again, _ = orders_of(prove, "--seed", "3", "-k", "test_5")
    assert again == {"test_5": orders["test_5"]}
    assert "seed 3" in prove.again("report").stdout
    assert orders_of(prove, "--seed", "4", "-k", "test_5")[0] != again
    seeds = [orders_of(prove, "-k", "test_5")[1] for _ in range(2)]
    assert len({3, *seeds}) == 3  # a new one each time
