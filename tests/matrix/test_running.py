"""Cells run on this machine: each end has its name, none hides another, nothing is run twice."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from driving import Drive, cell, is_there, until

from harness.errors import NotReady, UnfixError
from harness.matrix import attempting, outcomes, preparing
from harness.matrix.attempting import Task
from harness.matrix.local import Devices, Local
from harness.matrix.running import LOSSES, Ended, Place, Rules, Running
from harness.matrix.values import Cell, Needs
from harness.store.database import Store
from harness.store.matrices import Attempt, MatrixRun, Outcome, RanCell

# How a cell ends


def test_each_end_has_its_name_and_none_hides_another(drive: Drive) -> None:
    ends = {
        "green": "true",
        "red": "exit 1",
        "error": "exit 2",
        "odd": "exit 7",
        "not-ready": "exit 3",
        "crash": "kill -SEGV $$",
        "below": "sh -c 'kill -ABRT $$'; exit $?",
        "hang": "sleep 60",
    }
    drive.write(*(cell(name, script, limit=1.0) for name, script in ends.items()))
    assert drive.run() == 1
    assert drive.words() == {**{name: name for name in ends}, "odd": "error", "below": "crash"}
    hows = {one.identity: one.attempts[0].how for one in drive.newest().cells}
    assert hows["crash"] == "SIGSEGV"
    assert hows["below"] == "exit code 134: SIGABRT below a shell"
    assert hows["odd"] == "exit code 7"
    assert hows["hang"] == "ran past its limit of 1 s"


def test_a_hang_ends_the_whole_tree_also_what_left_its_group(drive: Drive) -> None:
    script = f"setsid sleep 61 & echo $! > {drive.flag('pid')}; sleep 61"
    drive.write(cell("hang", script, limit=0.5))
    assert drive.run() == 1
    assert drive.words() == {"hang": "hang"}
    assert not is_there(int(drive.flag("pid").read_text()))


def test_a_cell_that_ends_well_leaves_nothing_behind(drive: Drive) -> None:
    drive.write(cell("leaves", f"sleep 62 & echo $! > {drive.flag('pid')}"))
    assert drive.run() == 0
    assert not is_there(int(drive.flag("pid").read_text()))


def test_a_cell_has_a_process_group_of_its_own(drive: Drive) -> None:
    drive.write(cell("group", "ps -o pgid= -p $$"))
    assert drive.run() == 0
    assert int(drive.newest().cells[0].attempts[0].output) != os.getpgid(0)


def test_a_command_that_is_not_here_is_not_ready_and_that_alone_ends_with_3(drive: Drive) -> None:
    gone = Cell("gone", {}, "work", ["no-such-program"], {}, Needs(), 5.0, "covering")
    drive.write(gone, cell("fine", "true"))
    assert drive.run() == 3
    assert drive.words() == {"gone": "not-ready", "fine": "green"}
    drive.write(gone, cell("bad", "exit 1"))
    assert drive.run() == 1


def test_the_log_lies_where_it_is_said_to_and_earlier_ones_beside_it(drive: Drive) -> None:
    drive.write(cell("two", "echo attempt $UNFIX_ATTEMPT; exit 1"))
    assert drive.run("--retries", "1") == 1
    folder = drive.root / ".unfix" / "matrix" / drive.newest().id / "two"
    assert (folder / "log").read_text() == "attempt 2\n"
    assert (folder / "log.1").read_text() == "attempt 1\n"
    assert {file.name for file in folder.iterdir()} == {"log", "log.1"}


def test_what_unfix_prints_as_json_is_counted(drive: Drive) -> None:
    said = {"counts": {"proven": 7, "toothless": 2}, "green": False}
    (drive.root / "said.json").write_text(json.dumps(said, indent=2) + "\n")
    told = Cell(
        *("told", {}, "work", ["sh", "-c", "echo on stderr >&2; cat said.json; exit 1", "--json"]),
        *({}, Needs(), 5.0, "covering"),
    )
    drive.write(told)
    assert drive.run() == 1
    assert drive.newest().cells[0].attempts[0].inside == {"proven": 7, "toothless": 2}


def test_a_command_that_ends_well_and_says_it_is_not_green_is_red(drive: Drive) -> None:
    (drive.root / "said.json").write_text('{\n  "green": false\n}\n')
    lying = ["sh", "-c", "cat said.json", "--json"]
    drive.write(Cell("lies", {}, "work", lying, {}, Needs(), 5.0, "covering"))
    assert drive.run() == 1
    assert drive.words() == {"lies": "red"}


def test_an_evaluations_verdicts_are_counted_too(tmp_path: Path) -> None:
    found = {"compared": [{"verdict": "same"}, {"verdict": "same"}, {"verdict": "regressed"}]}
    assert outcomes.inside(found) == {"same": 2, "regressed": 1}
    log = tmp_path / "log"
    log.write_text('{\n  "first": 1\n}\nwords\n{\n  "cut": \n')
    assert outcomes.printed(log) is None


# Again


def fails_first(drive: Drive, name: str, times: int) -> Cell:
    return cell(name, f"{drive.ran(name)}; test $(wc -c < {drive.root / name}.ran) -gt {times}")


def test_a_cell_that_failed_and_then_passed_is_flaky_and_not_green(drive: Drive) -> None:
    drive.write(fails_first(drive, "flaky", 1), fails_first(drive, "bad", 9), cell("ok", "true"))
    assert drive.run("--retries", "2") == 1
    assert drive.words() == {"flaky": "flaky", "bad": "red", "ok": "green"}
    assert (drive.times("flaky"), drive.times("bad")) == (2, 3)
    drive.write(fails_first(drive, "alone", 1), digest="2")
    assert drive.run("--retries", "1") == 1
    assert drive.newest().problems == ["1 cell failed and then passed: flaky, and not green"]


def test_a_resume_remembers_a_failure_whose_retry_was_cut_off(drive: Drive) -> None:
    """Else a flaky cell would come out green, for its failure is forgotten."""
    first = f"{drive.ran('a')}; test $(wc -c < {drive.root}/a.ran) = 1 && exit 1; "
    drive.write(
        cell("a", first + f"touch {drive.flag('again')}; test -e {drive.flag('go')} || sleep 63")
    )
    running = drive.start("--retries", "1")
    until(drive.flag("again").exists)
    running.kill()
    running.communicate()
    drive.flag("go").touch()
    assert drive.run("--resume") == 1
    assert drive.words() == {"a": "flaky"}
    assert drive.times("a") == 3


def test_fail_fast_stops_at_the_first_and_without_it_all_run(drive: Drive) -> None:
    cells = [cell("bad", "exit 1"), *(cell(f"c{n}", "sleep 0.3") for n in range(6))]
    drive.write(*cells)
    assert drive.run("--fail-fast") == 1
    run = drive.newest()
    assert run.status == "stopped"
    assert run.counts["red"] == 1
    assert run.counts["missing"] >= 4
    assert drive.run() == 1
    assert drive.newest().counts == {"red": 1, "green": 6}


# Stopped, and gone on with


def test_a_killed_run_goes_on_and_finished_cells_are_not_run_again(drive: Drive) -> None:
    wait = f"; touch {drive.flag('there')}; test -e {drive.flag('go')} || sleep 64"
    drive.write(
        cell("done", drive.ran("done")),
        cell("failed", drive.ran("failed") + "; exit 1"),
        cell("running", f"{drive.ran('running')}; echo $$ > {drive.flag('pid')}{wait}"),
        cell("later", f"test -e {drive.flag('go')} || sleep 64; {drive.ran('later')}"),
    )
    running = drive.start()
    until(lambda: drive.flag("there").exists() and len(drive.newest().counts) == 3)
    with pytest.raises(UnfixError, match="still going on"):
        drive.run("--resume")
    running.kill()
    running.communicate()
    pid = int(drive.flag("pid").read_text())
    until(lambda: not is_there(pid), 5.0)  # nobody looks after it any more
    assert drive.newest().status == "stopped"
    drive.flag("go").touch()
    assert drive.run("--resume") == 1
    assert drive.words() == {
        "done": "green", "failed": "red", "running": "green", "later": "green"
    }  # fmt: skip
    times = {name: drive.times(name) for name in drive.words()}
    assert times == {"done": 1, "failed": 1, "running": 2, "later": 1}
    assert drive.newest().status == "finished"


def test_a_plan_that_changed_is_not_gone_on_with(drive: Drive) -> None:
    drive.write(cell("a", "true"))
    with pytest.raises(UnfixError, match="no run of tried is stored"):
        drive.run("--resume")
    drive.run()
    drive.write(cell("a", "false"), digest="digest-2")
    with pytest.raises(UnfixError, match=r"the plan is digest-2 now.* is of plan digest-1"):
        drive.run("--resume")


def test_a_resume_runs_again_what_had_no_place_and_nothing_else(drive: Drive) -> None:
    drive.write(cell("late", f"test -e {drive.flag('go')} || exit 3"), cell("ok", drive.ran("ok")))
    assert drive.run() == 3
    drive.flag("go").touch()
    assert drive.run("--resume") == 0
    assert drive.words() == {"late": "green", "ok": "green"}
    assert drive.times("ok") == 1


def test_a_stop_ends_what_runs_and_says_so(drive: Drive) -> None:
    drive.write(cell("long", f"echo $$ > {drive.flag('pid')}; sleep 65"))
    running = drive.start()
    until(lambda: drive.flag("pid").exists() and drive.flag("pid").read_text())
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=20)
    assert running.returncode == 130
    assert not is_there(int(drive.flag("pid").read_text()))
    assert drive.newest().status == "stopped"


def test_one_cell_is_run_by_its_identity_and_is_no_shard(drive: Drive) -> None:
    drive.write(cell("one", drive.ran("one")), cell("two", drive.ran("two")))
    assert drive.run("--cell", "tw") == 0
    assert (drive.times("one"), drive.times("two")) == (0, 1)
    assert drive.newest().only == ["two"]
    with pytest.raises(UnfixError, match="no cell three"):
        drive.run("--cell", "three")
    with pytest.raises(UnfixError, match="nothing to resume"):
        drive.run("--resume")


@pytest.mark.parametrize("words", ["0/2", "3/2", "2", "a/b", "-1/2"])
def test_a_share_that_is_none_is_refused(drive: Drive, words: str) -> None:
    drive.write(cell("one", "true"))
    with pytest.raises(UnfixError, match="is no share"):
        drive.run(f"--shard={words}")


# Lost


class Unlucky:
    """An executor whose workers die so often, and then say what they are told to."""

    def __init__(self, losses: int, then: list[Outcome]) -> None:
        self.left = [Outcome.LOST] * losses + then
        self.started: list[Task] = []

    def lacking(self, needs: Needs) -> str:
        return ""

    def room(self, needs: Needs) -> bool:
        return not self.started

    def start(self, task: Task, needs: Needs) -> None:
        self.started.append(task)

    def wait(self, seconds: float) -> list[Ended]:
        task = self.started.pop()
        return [Ended(task.cell, Attempt(task.number, self.left.pop(0), "so", "now"))]

    def stop(self) -> None:
        self.started.clear()

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("losses", "then", "word", "attempts"),
    [
        (2, [Outcome.GREEN], "green", 3),
        (1, [Outcome.RED, Outcome.GREEN], "flaky", 3),
        (LOSSES, [Outcome.GREEN], "lost", LOSSES),
        (2, [Outcome.RED, Outcome.RED], "red", 4),
    ],
)
def test_a_lost_cell_is_run_again_so_often_and_is_flaky_only_by_its_own_failure(
    tmp_path: Path, losses: int, then: list[Outcome], word: str, attempts: int
) -> None:
    kept: list[Attempt] = []
    one = cell("a", "true")
    executor = Unlucky(losses, then)
    place = Place("run", tmp_path, tmp_path)
    keep = lambda ended: kept.extend(attempt for _, attempt in ended)  # noqa: E731
    Running([one], executor, place, Rules(retries=1), keep).go()
    ran = RanCell("a", {}, "work", [], "", attempts=kept)
    assert (ran.word, len(kept)) == (word, attempts)
    assert [attempt.number for attempt in kept] == list(range(1, attempts + 1))


def test_a_cell_whose_supervisor_is_killed_is_lost_and_leaves_nothing(tmp_path: Path) -> None:
    # The command's parent is the supervisor; what it left is known by the log it writes to.
    script = f"setsid sleep 66 & echo $! > {tmp_path}/pid; kill -9 $PPID; sleep 66"
    task = Task("run", "a", 1, ["sh", "-c", script], {}, 20.0, str(tmp_path), str(tmp_path))
    made = attempting.attempt(task, tmp_path)
    assert (made.outcome, made.how) == (Outcome.LOST, "what looked after it was killed: SIGKILL")
    assert not is_there(int((tmp_path / "pid").read_text()))


# What a machine has


def test_what_this_machine_lacks_is_said_by_name_and_the_rest_runs(drive: Drive) -> None:
    drive.write(
        cell("many", "true", cpus=4096.0),
        cell("npu", "true", custom={"npu": 64.0}),
        cell("tpu", "true", custom={"tpu": 1.0}),
        cell("fine", "true"),
    )
    assert drive.run() == 3
    run = drive.newest()
    assert run.counts == {"not-ready": 3, "green": 1}
    hows = {one.identity: one.attempts[0].how for one in run.cells}
    assert "it needs 4096" in hows["many"]
    assert "has 0 tpu" in hows["tpu"]
    assert len(run.notes) == 3


def test_gpus_are_given_out_one_by_one_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")  # what asks for none sees none of them
    has = Devices(8.0, ["4", "7"], "NVIDIA H200")
    show = f"echo $CUDA_VISIBLE_DEVICES >> {tmp_path}/seen; sleep 0.4"
    cells = [
        *(cell(f"one{n}", show, gpus=1.0, gpu="h200") for n in range(2)),
        *(cell(f"half{n}", show, gpus=0.5) for n in range(2)),
        cell("both", show, gpus=2.0),
        cell("none", show),
        cell("other", show, gpus=1.0, gpu="H100"),
        cell("three", show, gpus=3.0),
    ]
    kept: dict[str, Attempt] = {}
    local = Local(8, has)
    place = Place("run", tmp_path / "logs", tmp_path)
    Running(cells, local, place, Rules(), lambda ended: kept.update(ended)).go()
    local.close()
    seen = (tmp_path / "seen").read_text().split("\n")[:-1]
    assert seen.count("") == 1
    assert seen.count("4,7") == 1
    assert len(seen) == 6
    assert kept["other"].how == "this machine has no GPU of the kind H100: NVIDIA H200"
    assert kept["three"].outcome is Outcome.NOT_READY
    assert kept["both"].device_seconds == pytest.approx(2 * kept["both"].seconds)
    assert kept["half0"].device_seconds == pytest.approx(kept["half0"].seconds / 2)
    assert kept["none"].device_seconds == 0


def test_no_gpu_is_held_twice(tmp_path: Path) -> None:
    local = Local(8, Devices(8.0, ["0", "1"]))
    task = Task("run", "a", 1, ["true"], {}, 5.0, str(tmp_path), str(tmp_path))
    whole, half, quarter = Needs(gpus=1.0), Needs(gpus=0.5), Needs(gpus=0.25)
    local.start(task, half)
    assert local.room(whole)
    local.start(task, whole)
    assert not local.room(whole)
    assert local.room(half)
    local.start(task, quarter)
    assert not local.room(half)
    assert local.room(quarter)
    local.close()


# Releases


ADDER = """
import json, sys
from harness import paths
from harness.releases import managed
with open(paths.workspace() / "added", "a") as file:
    file.write("x")
if (paths.workspace() / "broken").exists():
    sys.exit("no disk for it")
from harness.releases.managed import LOCKS, facts
for folder, wanted in (
    (paths.releases() / "base", facts(LOCKS / "base.txt")),
    (managed.get(sys.argv[1]).folder, managed.get(sys.argv[1]).facts()),
):
    folder.mkdir(parents=True)
    (folder / managed.COMPLETE).write_text(json.dumps(wanted))
"""


@pytest.mark.parametrize("broken", [False, True])
def test_a_release_is_added_once_for_all_cells_and_so_is_its_failure_told(
    drive: Drive, broken: bool
) -> None:
    (drive.root / "adder.py").write_text(ADDER)
    if broken:
        drive.flag("x").with_name("broken").touch()
    words = ["sh", "-c", "true", "--release", "0.5.18"]
    values = {"release": "0.5.18"}
    cells = [Cell(f"c{n}", values, "work", words, {}, Needs(), 5.0, "") for n in range(6)]
    kept: list[tuple[str, Attempt]] = []
    import sys

    place = Place(
        *(f"run-{os.getpid()}-{drive.root.name}-{broken}", drive.root / "logs", drive.root),
        [sys.executable, str(drive.root / "adder.py")],
    )
    local = Local(2)
    Running(cells, local, place, Rules(), kept.extend).go()
    local.close()
    assert (drive.root / "added").read_text() == "x"
    wanted = Outcome.NOT_READY if broken else Outcome.GREEN
    assert [one.outcome for _, one in kept] == [wanted] * 6
    if broken:
        assert "`unfix releases add 0.5.18` ended 1: no disk for it" in kept[-1][1].how


def test_a_release_is_needed_only_where_the_command_names_it() -> None:
    values = {"release": "0.5.18", "page": "1"}
    assert preparing.needed(values, ["unfix", "prove", "--release", "0.5.18"]) == "0.5.18"
    assert preparing.needed(values, ["unfix", "prove", "--release=0.5.18"]) == "0.5.18"
    assert preparing.needed(values, ["unfix", "list"]) == ""
    assert preparing.needed({"release": "current"}, ["unfix", "prove", "current"]) == ""


# The store


def run_of(**changes: Any) -> MatrixRun:
    made = MatrixRun("m-1", "tried", "file.yaml", "digest-1", 1, {}, "2026-01-01T00:00:00+00:00")
    made.cells = [RanCell("a", {"kv": "fp8"}, "work", ["true"], "covering")]
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.sqlite")
    run = run_of()
    store.begin_matrix(run)
    tried = [
        Attempt(1, Outcome.RED, "exit code 1", "then", 2.0, output="</script> \x00"),
        Attempt(2, Outcome.GREEN, "exit code 0", "then", 3.0, 3.0, last=True),
    ]
    store.attempts(run.id, [("a", one) for one in tried])
    run.status, run.seconds = "finished", 5.0
    store.end_matrix(run)
    read = store.find_matrix("m-")
    assert read is not None
    run.cells[0].attempts = tried
    assert read == run
    assert (read.cells[0].seconds, read.device_seconds) == (5.0, 3.0)


def test_what_a_cell_takes_is_the_median_of_those_that_came_to_an_answer(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.sqlite")
    store.begin_matrix(run_of())
    ends = [
        *((Outcome.GREEN, 1.0), (Outcome.RED, 3.0), (Outcome.GREEN, 10.0)),
        *((Outcome.HANG, 900.0), (Outcome.LOST, 700.0), (Outcome.NOT_READY, 0.0)),
    ]
    for number, (outcome, seconds) in enumerate(ends, 1):
        store.attempts("m-1", [("a", Attempt(number, outcome, "", "then", seconds))])
    assert store.seconds_by_identity() == {"a": 3.0}


def test_a_disk_that_fills_keeps_what_was_done_and_the_run_goes_on_later(
    drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive.write(
        *(
            cell(f"c{n}", f"sleep 0.4; {drive.ran(f'c{n}')}; head -c 4000 /dev/zero")
            for n in range(8)
        )
    )
    keep = Store.attempts
    written = []

    def full(store: Store, run: str, ended: Any) -> None:
        written.append(len(list(ended)))
        if sum(written) > 2:
            pages = store._db.execute("PRAGMA page_count").fetchone()[0]
            store._db.execute(f"PRAGMA max_page_count = {pages}")
        keep(store, run, ended)

    monkeypatch.setattr(Store, "attempts", full)
    with pytest.raises(NotReady, match="full"):
        drive.run()
    monkeypatch.undo()
    monkeypatch.setenv("UNFIX_HOME", str(drive.root))
    monkeypatch.chdir(drive.root)
    run = drive.newest()
    assert run.status == "stopped"
    assert run.counts["green"] >= 1
    done = [one.identity for one in run.cells if one.done]
    assert drive.run("--resume") == 0
    assert drive.newest().counts == {"green": 8}
    assert {drive.times(name) for name in done} == {1}


def test_an_older_store_is_made_to_hold_matrices(tmp_path: Path) -> None:
    file = tmp_path / "runs.sqlite"
    Store(file).close()
    old = sqlite3.connect(file)
    for table in ("matrices", "matrix_cells", "matrix_attempts"):
        old.execute(f"DROP TABLE {table}")
    old.execute("PRAGMA user_version = 3")
    old.close()
    store = Store(file)
    store.begin_matrix(run_of())
    assert [run.id for run in store.matrices()] == ["m-1"]


def test_nothing_that_is_not_wholly_green_is_green() -> None:
    for word in Outcome:
        run = run_of(status="finished")
        first = [Attempt(1, Outcome.RED, "", "then")] if word is Outcome.FLAKY else []
        last = Outcome.GREEN if word is Outcome.FLAKY else word
        run.cells[0].attempts = [*first, Attempt(2, last, "", "then", last=True)]
        assert run.cells[0].word == word
        assert run.green is (word is Outcome.GREEN)
        expected = {Outcome.GREEN: 0, Outcome.NOT_READY: 3}.get(word, 1)
        assert run.exit_code == expected
    assert run_of(status="finished").problems == ["1 cell without an outcome"]
    assert run_of(status="finished", cells=[]).exit_code == 1
    green = run_of(status="stopped")
    green.cells[0].attempts = [Attempt(1, Outcome.GREEN, "", "then", last=True)]
    assert green.problems == ["the run was stopped"]
