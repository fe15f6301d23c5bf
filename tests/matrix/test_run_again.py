"""Cells that are repeated, stopped, lost, and resumed: none is run twice or forgotten."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from calling import PATIENCE_SECONDS, is_alive, list_living_processes, wait_until
from driving import Drive, make_cell

from harness.core import paths
from harness.core.errors import UnfixError
from harness.core.outcomes import Outcome
from harness.matrices.schema import MachineNeeds
from harness.runs.matrix import cell_attempt
from harness.runs.matrix.cell_attempt import CellTask
from harness.runs.matrix.cell_plan import MatrixCell
from harness.runs.matrix.cell_scheduler import (
    MAX_LOSSES,
    CellExecutor,
    CellScheduler,
    FinishedAttempt,
    RetryRules,
    RunLocation,
)
from harness.store.matrix.values import CellAttempt, MatrixCellResult
from harness.workers import command_supervisor
from harness.workers.command_supervisor import CommandRequest

# Repetition


def fails_first(drive: Drive, name: str, times: int) -> MatrixCell:
    return make_cell(
        name, f"{drive.marks(name)}; test $(wc -c < {drive.root / name}.ran) -gt {times}"
    )


def test_a_cell_that_failed_and_then_passed_is_flaky_and_not_green(drive: Drive) -> None:
    drive.write(
        fails_first(drive, "flaky", 1), fails_first(drive, "bad", 9), make_cell("ok", "true")
    )
    assert drive.run("--retries", "2") == 1
    assert drive.words() == {"flaky": "flaky", "bad": "failed", "ok": "passed"}
    assert (drive.times("flaky"), drive.times("bad")) == (2, 3)
    drive.write(fails_first(drive, "alone", 1), digest="2")
    assert drive.run("--retries", "1") == 1
    assert drive.newest().problems == ["1 cell failed and then passed: flaky, and not green"]


def test_a_resume_remembers_a_failure_whose_retry_was_cut_off(drive: Drive) -> None:
    """Else a flaky cell would end green, since its failure is forgotten."""
    first = f"{drive.marks('a')}; test $(wc -c < {drive.root}/a.ran) = 1 && exit 1; "
    wait = f"touch {drive.flag('again')}; test -e {drive.flag('go')} || sleep 613"
    drive.write(make_cell("a", first + wait))
    running = drive.start("--retries", "1")
    wait_until(drive.flag("again").exists)
    running.kill()
    running.communicate()
    drive.flag("go").touch()
    assert drive.run("--resume") == 1
    assert drive.words() == {"a": "flaky"}
    assert drive.times("a") == 3


def test_fail_fast_stops_at_the_first_and_without_it_all_run(drive: Drive) -> None:
    cells = [make_cell("bad", "exit 1"), *(make_cell(f"c{n}", "sleep 0.3") for n in range(6))]
    drive.write(*cells)
    assert drive.run("--fail-fast") == 1
    run = drive.newest()
    assert run.status == "stopped"
    assert run.counts["failed"] == 1
    assert run.counts["missing"] >= 4
    assert drive.run() == 1
    assert drive.newest().counts == {"failed": 1, "passed": 6}


def test_a_killed_run_goes_on_and_finished_cells_are_not_run_again(drive: Drive) -> None:
    wait = f"; touch {drive.flag('there')}; test -e {drive.flag('go')} || sleep 614"
    drive.write(
        make_cell("done", drive.marks("done")),
        make_cell("failed", drive.marks("failed") + "; exit 1"),
        make_cell("running", f"{drive.marks('running')}; echo $$ > {drive.flag('pid')}{wait}"),
        make_cell("later", f"test -e {drive.flag('go')} || sleep 614; {drive.marks('later')}"),
    )
    running = drive.start()
    wait_until(lambda: drive.flag("there").exists() and len(drive.newest().counts) == 3)
    with pytest.raises(UnfixError, match="still running"):
        drive.run("--resume")
    running.kill()
    running.communicate()
    pid = int(drive.flag("pid").read_text())
    wait_until(lambda: not is_alive(pid))  # its supervisor ends it
    wait_until(
        lambda: not list_living_processes(drive.root)
    )  # and the cell beside it, which `go` would release
    assert drive.newest().status == "stopped"
    drive.flag("go").touch()
    assert drive.run("--resume") == 1
    assert drive.words() == {
        "done": "passed", "failed": "failed", "running": "passed", "later": "passed"
    }  # fmt: skip
    times = {name: drive.times(name) for name in drive.words()}
    assert times == {"done": 1, "failed": 1, "running": 2, "later": 1}
    assert drive.newest().status == "finished"


def test_a_supervisor_whose_parent_is_gone_before_it_looks_ends_its_cell(drive: Drive) -> None:
    request = CommandRequest(
        command=["sh", "-c", f"touch {drive.flag('there')}; sleep 613"],
        environment=dict(os.environ),
        seconds=60.0,
        output=str(drive.root / "log"),
        working_folder=str(drive.root),
    )
    command_supervisor.write_request(drive.root, request)
    gone = subprocess.Popen(["true"])
    gone.wait()
    late = [sys.executable, "-P", "-m", command_supervisor.MODULE, str(drive.root)]
    late += [str(gone.pid), command_supervisor.SHIELDED]
    ours = {"UNFIX_HOME": str(drive.root), "PYTHONPATH": str(paths.project_folder())}
    assert (
        subprocess.run(late, env={**os.environ, **ours}, timeout=PATIENCE_SECONDS).returncode == 1
    )
    wait_until(lambda: not list_living_processes(drive.root))
    assert command_supervisor.read_exit(drive.root) is None


def test_a_plan_that_changed_is_not_gone_on_with(drive: Drive) -> None:
    drive.write(make_cell("a", "true"))
    with pytest.raises(UnfixError, match="no run of tried is stored"):
        drive.run("--resume")
    drive.run()
    drive.write(make_cell("a", "false"), digest="digest-2")
    with pytest.raises(UnfixError, match=r"the plan is digest-2 now.* is of plan digest-1"):
        drive.run("--resume")


def test_a_resume_runs_again_what_had_no_place_and_nothing_else(drive: Drive) -> None:
    drive.write(
        make_cell("late", f"test -e {drive.flag('go')} || exit 3"),
        make_cell("ok", drive.marks("ok")),
    )
    assert drive.run() == 3
    drive.flag("go").touch()
    assert drive.run("--resume") == 0
    assert drive.words() == {"late": "passed", "ok": "passed"}
    assert drive.times("ok") == 1


def test_a_stop_ends_what_runs_and_says_so(drive: Drive) -> None:
    drive.write(make_cell("long", f"echo $$ > {drive.flag('pid')}; sleep 615"))
    running = drive.start()
    wait_until(lambda: drive.flag("pid").exists() and drive.flag("pid").read_text())
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=PATIENCE_SECONDS)
    assert running.returncode == 130
    assert not is_alive(int(drive.flag("pid").read_text()))
    assert drive.newest().status == "stopped"


def test_a_cell_that_is_run_by_its_identity_is_no_shard(drive: Drive) -> None:
    drive.write(make_cell("one", drive.marks("one")), make_cell("two", drive.marks("two")))
    assert drive.run("--cell", "tw") == 0
    assert (drive.times("one"), drive.times("two")) == (0, 1)
    assert drive.newest().only == ["two"]
    with pytest.raises(UnfixError, match="no cell three"):
        drive.run("--cell", "three")
    with pytest.raises(UnfixError, match="nothing to resume"):
        drive.run("--resume")


@pytest.mark.parametrize("words", ["0/2", "3/2", "2", "a/b", "-1/2"])
def test_a_share_that_is_none_is_refused(drive: Drive, words: str) -> None:
    drive.write(make_cell("one", "true"))
    with pytest.raises(UnfixError, match="is no share"):
        drive.run(f"--shard={words}")


class UnluckyExecutor(CellExecutor):
    """An executor whose workers die this often, and then report the given outcomes."""

    def __init__(self, losses: int, then: list[Outcome]) -> None:
        super().__init__()
        self.left = [Outcome.LOST] * losses + then
        self.tasks: list[CellTask] = []

    def describe_shortage(self, needs: MachineNeeds) -> str:
        return ""

    def has_room(self, needs: MachineNeeds) -> bool:
        return not self.tasks

    def start(self, task: CellTask, needs: MachineNeeds) -> None:
        self.tasks.append(task)
        self.report_finished()

    def collect_finished(self) -> list[FinishedAttempt]:
        if not self.tasks:
            return []
        task = self.tasks.pop()
        attempt = CellAttempt(task.attempt_number, self.left.pop(0), "so", "now")
        return [FinishedAttempt(task.cell_id, attempt)]

    def stop(self) -> None:
        self.tasks.clear()


@pytest.mark.parametrize(
    ("losses", "then", "word", "attempts"),
    [
        (2, [Outcome.PASSED], "passed", 3),
        (1, [Outcome.FAILED, Outcome.PASSED], "flaky", 3),
        (MAX_LOSSES, [Outcome.PASSED], "lost", MAX_LOSSES),
        (2, [Outcome.FAILED, Outcome.FAILED], "failed", 4),
    ],
)
def test_a_lost_cell_is_run_again_so_often_and_is_flaky_only_by_its_own_failure(
    tmp_path: Path, losses: int, then: list[Outcome], word: str, attempts: int
) -> None:
    attempts_made: list[CellAttempt] = []
    one = make_cell("a", "true")
    executor = UnluckyExecutor(losses, then)
    place = RunLocation("run", tmp_path, tmp_path)
    keep = lambda ended: attempts_made.extend(attempt for _, attempt in ended)  # noqa: E731
    CellScheduler([one], executor, place, RetryRules(retries=1), keep).run()
    ran = MatrixCellResult("a", {}, "work", [], "", attempts=attempts_made)
    assert (ran.outcome_word, len(attempts_made)) == (word, attempts)
    assert [attempt.number for attempt in attempts_made] == list(range(1, attempts + 1))


def test_a_cell_whose_supervisor_is_killed_is_lost_and_leaves_nothing(tmp_path: Path) -> None:
    # The command's parent is the supervisor; the log identifies the processes left behind.
    script = f"setsid sleep 616 & echo $! > {tmp_path}/pid; kill -9 $PPID; sleep 616"
    task = CellTask("run", "a", 1, ["sh", "-c", script], {}, 20.0, str(tmp_path), str(tmp_path))
    attempt = cell_attempt.run_attempt(task, tmp_path)
    assert (attempt.outcome, attempt.how) == (Outcome.LOST, "its supervisor was killed: SIGKILL")
    assert not is_alive(int((tmp_path / "pid").read_text()))


def test_an_executor_that_wakes_nobody_is_asked_in_each_turn(tmp_path: Path) -> None:
    """An attempt that ended unnoticed would keep the run waiting for ever."""

    class SilentExecutor(UnluckyExecutor):
        def report_finished(self) -> None: ...

    ended: list[tuple[str, CellAttempt]] = []
    place = RunLocation("run", tmp_path, tmp_path)
    executor = SilentExecutor(0, [Outcome.PASSED])
    CellScheduler([make_cell("a", "true")], executor, place, RetryRules(), ended.extend).run()
    assert [attempt.outcome for _, attempt in ended] == [Outcome.PASSED]
