"""The results of faults, and that nothing of a fault is left anywhere."""

from __future__ import annotations

import subprocess

from calling import PATIENCE_SECONDS, list_living_processes, wait_until
from toy_release import CODE, HANGS, Mutate, by_id, read_sources

# A single child that waits and ends: one that ran the test on would fork at every example too.
LEAVES_A_CHILD = (
    "import os, time\n"
    "    if not hasattr(os, 'left'):\n"
    "        os.left = True\n"
    "        os.fork() or (time.sleep(60), os._exit(0))"
)


def test_each_fault_gets_its_fate_and_the_way_it_was_killed(mutate: Mutate) -> None:
    dropped = mutate.fault("width", "rows * topk", "rows")
    raises = mutate.fault("width", "rows * topk", "rows * topk.gone")
    dies = mutate.fault(
        "width", "return rows", "import os; os.kill(os.getpid(), 11)\n    return rows"
    )
    leaves = mutate.fault("width", "return rows", "import os; os._exit(3)\n    return rows")
    wider = mutate.fault("width", "rows * topk", "rows * topk + 1")
    cached = mutate.fault("total", "range(count)", "range(count - 1)")
    other = mutate.fault("chosen", "return 2", "return 3")
    decorator = mutate.fault("total", "    found = 0", "    found = 1")
    run = mutate.run()
    fates = by_id(run)
    results = {name: (fate["fate"], fate["how"]) for name, fate in fates.items()}
    assert results == {
        dropped.id: ("killed", "assertion"),
        raises.id: ("killed", "exception"),
        dies.id: ("killed", "crash"),
        leaves.id: ("killed", "exit"),
        wider.id: ("survived", None),
        cached.id: ("killed", "assertion"),
        other.id: ("unreached", None),
        decorator.id: ("killed", "assertion"),
    }
    assert fates[wider.id]["longer"]
    assert fates[wider.id]["passed"] == ["test_sizes.py::test_width"]
    assert fates[wider.id]["ran"] > 40
    assert "segmentation fault" in fates[dies.id]["headline"]
    assert run["score"] == 100 * 6 / 7
    assert run["counts"] == {"killed": 6, "survived": 1, "unreached": 1}
    assert run["code"] == 0


def test_what_only_an_import_can_change_is_outside_the_score(mutate: Mutate) -> None:
    start = CODE.index("maxsize=4")
    fault = mutate.fault("width", "rows * topk", "rows")
    line = CODE.count("\n", 0, start) + 1
    fields = {name: getattr(fault, name) for name in fault.__struct_fields__}
    places = {"start": start, "end": start + 9, "line": line, "first": line, "last": line}
    changed = {"id": "0123456789", "qualname": "total", "before": "maxsize=4", "after": "maxsize=5"}
    mutate.faults.append(type(fault)(**{**fields, **places, **changed}))
    run = mutate.run()
    fated = by_id(run)["0123456789"]
    assert fated["fate"] == "not live"
    assert "decorator" in fated["why"]
    assert run["score"] == 100


def test_a_hang_is_ended_and_named(mutate: Mutate) -> None:
    mutate.fault("width", "return rows", HANGS + "return rows")
    mutate.patience = (1.0, (3.0, 2.0))
    (fated,) = mutate.fates().values()
    assert (fated["fate"], fated["how"]) == ("hang", None)
    assert "sizes" in fated["detail"]  # the line that hangs


def test_a_line_that_is_recorded_and_code_that_does_not_run_is_unreached(mutate: Mutate) -> None:
    """The record may be older: a guard that no longer reaches the code saw nothing."""
    mutate.guards.write_text(
        "import os\nfrom pathlib import Path\nfrom sglang.srt import sizes\n"
        "def test_once():\n"
        "    seen = Path(__file__).parent / 'seen'\n"
        "    if not seen.exists():\n        seen.touch()\n        sizes.width(1, 2)\n"
    )
    mutate.fault("width", "rows * topk", "rows")
    run = mutate.run()
    (fated,) = run["fates"]
    assert fated["fate"] == "unreached"
    assert "did not run" in fated["why"]
    assert run["code"] == 1
    assert any("nothing is measured" in problem for problem in run["problems"])


def test_an_equal_fault_that_is_killed_is_an_error(mutate: Mutate) -> None:
    wrong = mutate.fault("width", "rows * topk", "rows")
    right = mutate.fault("width", "rows * topk", "topk * rows")
    other = mutate.fault("total", "range(count)", "range(count - 1)")
    unread = mutate.fault("unread", "rows + ROOM", "ROOM + rows")
    mutate.equals = {
        wrong.id: "so it was thought",
        right.id: "products commute for integers",
        unread.id: "sums commute for integers",
    }
    quick = mutate.fates()
    assert quick[unread.id]["fate"] == "unreached"
    results = {name: (fated["fate"], fated["ran"]) for name, fated in quick.items()}
    assert results[wrong.id] == results[right.id] == ("equal", 0)
    run = mutate.run("--equal")
    fates = by_id(run)
    assert fates[right.id]["fate"] == "equal"
    assert fates[right.id]["ran"]
    assert not fates[right.id]["longer"]
    assert fates[wrong.id]["fate"] == "killed"
    assert fates[other.id]["fate"] == "killed"
    assert run["code"] == 1
    assert any(wrong.id in problem and "equal" in problem for problem in run["problems"])


def test_a_guard_that_fails_without_a_fault_keeps_the_run_from_green(mutate: Mutate) -> None:
    with open(mutate.guards, "a") as file:
        file.write("\ndef test_red():\n    assert sizes.width(2, 2) == 5\n")
    dropped = mutate.fault("width", "rows * topk", "rows")
    run = mutate.run()
    assert by_id(run)[dropped.id]["by"].endswith("test_width")
    assert any("test_red fails without any fault" in problem for problem in run["problems"])
    assert run["code"] == 1


def test_nothing_made_is_red_and_at_least_is_a_verdict(mutate: Mutate) -> None:
    nothing = mutate.run()
    assert nothing["code"] == 1
    assert "no fault was made" in nothing["problems"]
    mutate.fault("width", "rows * topk", "rows * topk + 1")
    mutate.fault("width", "rows * topk", "rows")
    assert mutate.run("--at-least", "50")["code"] == 0
    assert mutate.run("--at-least", "51")["code"] == 1


def test_reach_is_recorded_once_until_a_guard_changes(mutate: Mutate) -> None:
    mutate.fault("width", "rows * topk", "rows")
    assert "the lines of 3 are recorded" in mutate.run()["stderr"]
    assert "are recorded" not in mutate.run()["stderr"]
    mutate.guards.write_text(mutate.guards.read_text() + "\n")
    assert "are recorded" in mutate.run()["stderr"]


def test_sources_are_what_they_were_and_nothing_lives_on(mutate: Mutate) -> None:
    before = read_sources(mutate)
    mutate.fault("width", "rows * topk", "rows")
    mutate.fault("width", "return rows", f"{LEAVES_A_CHILD}\n    return rows")
    mutate.run()
    assert read_sources(mutate) == before
    wait_until(lambda: not list_living_processes(mutate.root))
    left = {path.name for path in (mutate.root / ".unfix").iterdir()}
    assert left - {"cache"} == {"reach", "runs", "runs.sqlite"}
    assert list((mutate.root / ".unfix" / "runs").iterdir()) == []


def test_the_worker_runs_the_release_as_it_was_after_every_fault(mutate: Mutate) -> None:
    """A guard reports the code objects of the worker, the parent of its fork's supervisor."""
    mutate.guards.write_text(
        mutate.guards.read_text() + "\nimport hashlib, os\nfrom pathlib import Path\n"
        "BORN = hashlib.sha256(sizes.width.__code__.co_code).hexdigest()\n"
        "def test_code():\n"
        "    with open(Path(__file__).parent / 'codes', 'a') as file:\n"
        "        now = hashlib.sha256(sizes.width.__code__.co_code).hexdigest()\n"
        "        file.write(f'{now == BORN}\\n')\n"
        "    sizes.chosen(False)\n"
    )
    for after in ("rows", "topk", "rows + topk"):
        mutate.fault("width", "rows * topk", after)
    # Its own function is not the changed one: each fork begins from the worker's code.
    mutate.fault("chosen", "return 2", "return 4")
    mutate.run()
    codes = (mutate.guards.parent / "codes").read_text().split()
    assert len(codes) >= 3
    assert set(codes) == {"True"}


def test_a_stored_run_is_shown_again(mutate: Mutate) -> None:
    mutate.fault("width", "rows * topk", "rows * topk + 1")
    run = mutate.run("--markdown", str(mutate.root / "run.md"))
    again = subprocess.run(
        [*mutate.command()[:2], "report", run["id"]],
        cwd=mutate.root,
        env=mutate.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert "1 survivor in sglang.srt.sizes:width" in again.stdout
    assert "+    return rows * topk + 1" in again.stdout
    assert "survived" in (mutate.root / "run.md").read_text()
    [file] = (mutate.root / "reports" / "out").glob("mutate-*.html")
    page = file.read_text()
    assert "rows * topk + 1" in page
    assert 'aria-label="survived"' in page
