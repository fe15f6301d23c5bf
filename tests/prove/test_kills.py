"""SIGKILL between any two steps of the run, its worker or a supervisor loses and invents nothing.

A step is the begin or the end of a call. A killed run leaves its store as it is then: a run copies
it at each step, and each copy that differs is resumed. Workers and supervisors are really killed.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import forked
import pytest
from calling import PATIENCE_SECONDS, list_living_processes, wait_until
from proving import Prove

from harness.core.outcomes import Outcome
from harness.guards.verdicts import REQUIRED_FAILURES, REQUIRED_PASSES
from harness.store.database import Store
from harness.store.prove.table import ProveTable

PROVEN, TOOTHLESS = "test_toy.py::test_proven", "test_toy.py::test_toothless"
GUARDS = {
    PROVEN: "@guards('toy-plain')\ndef test_proven():\n    assert not buggy()\n",
    TOOTHLESS: "@guards('toy-plain')\ndef test_toothless():\n    buggy()\n",
}
EXPECTED = {PROVEN: "proven", TOOTHLESS: "toothless"}

# Counts the steps in a file that all processes share, and kills the taker of a chosen one.
STEPS = """
import functools, os, pathlib, shutil, signal

def step(file=os.environ.get("STEPS"), chosen=os.environ.get("CHOSEN", "").split()):
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(handle, b".")
    if str(os.fstat(handle).st_size) in chosen:
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(handle)

def stepped(owner, name):
    original = getattr(owner, name)
    @functools.wraps(original)
    def wrapper(*arguments, **options):
        step()
        result = original(*arguments, **options)
        step()
        return result
    setattr(owner, name, wrapper)
"""
OF_THE_RUN = f"""{STEPS}
import sys
count = step
def step(home=pathlib.Path(os.environ["UNFIX_HOME"])):
    count()
    kept = home / "kept" / str(os.stat(os.environ["STEPS"]).st_size)
    kept.mkdir(parents=True)
    for file in (home / ".unfix").glob("runs.sqlite*"):
        shutil.copy(file, kept)
from harness.cli import main
from harness.runs.prove import release_pool
from harness.workers import guard_pool
from harness.store.prove.table import ProveTable
STORED = ("begin", "save", "save_release", "save_planned_cells", "save_side", "save_verdict")
for name in STORED:
    stepped(ProveTable, name)
stepped(release_pool.ReleasePool, "handle_message")
stepped(guard_pool.GuardWorkerProcess, "__init__")
sys.exit(main.main(sys.argv[1:]))
"""
OF_A_WORKER = f"""{STEPS}
import sys
GuardWorker = sys.modules["__main__"].GuardWorker
MESSAGES = ("_receive_from_supervisor", "send_message", "receive_requests")
for name in ("_make_tasks", "dispatch_request", *MESSAGES):
    stepped(GuardWorker, name)
"""
OF_A_SUPERVISOR = f"""{STEPS}
count = step
def step():
    if os.getsid(0) == os.getpid():  # a supervisor, and not its test
        count()
from harness.core import processes
from harness.workers import supervisor
stepped(supervisor, "run_supervised_test")
stepped(supervisor, "_wait_within_limits")
stepped(processes, "read_log_tail")
"""


def read_verdicts(run: dict[str, Any]) -> dict[str, str | None]:
    return {cell["guard"]: cell.get("verdict") for cell in run["cells"]}


def run_stepping(
    prove: Prove, command: list[str], *chosen: int
) -> tuple[subprocess.CompletedProcess[str], int]:
    """Run and kill each process that takes one of these steps; return the number of steps."""
    steps = prove.root / "steps"
    steps.unlink(missing_ok=True)
    environment = {**prove.environment, "STEPS": str(steps), "CHOSEN": " ".join(map(str, chosen))}
    done = forked.run_unfix(command, prove.root, environment)
    return done, steps.stat().st_size


def test_the_run_is_killed_at_each_step_and_resumed(prove: Prove) -> None:
    prove.write("".join(GUARDS.values()))
    driver = prove.root / "driver.py"
    driver.write_text(OF_THE_RUN)
    words = prove.command("--json", "-j", "1", "--seed", "0")[3:]
    command = [sys.executable, str(driver), *words]
    _, steps = run_stepping(prove, command)
    assert steps > 30
    stores = prove.root / "kept"
    stores.rename(stores := prove.root / "as it was")
    seen: set[str] = set()
    for chosen in range(1, steps + 1):
        content = dump_store(put_back(prove, stores / str(chosen)))
        if content not in seen:
            seen.add(content)
            check_and_resume(prove, chosen)
    assert len(seen) > 10
    # The copies are the state that a kill leaves.
    for chosen in (steps // 4, steps // 2, steps - 3):
        put_back(prove, stores / "nothing")
        shutil.rmtree(prove.root / "kept", ignore_errors=True)
        killed, _ = run_stepping(prove, command, chosen)
        assert killed.returncode == -signal.SIGKILL, f"step {chosen}"
        check_and_resume(prove, chosen)
    wait_until(lambda: not list_living_processes(prove.root))


def put_back(prove: Prove, store_copy: Path) -> Path:
    """Restore a copy of the store."""
    for file in (prove.root / ".unfix").glob("runs.sqlite*"):
        file.unlink()
    for file in store_copy.glob("*"):
        shutil.copy(file, prove.root / ".unfix")
    return prove.root / ".unfix" / "runs.sqlite"


def dump_store(file: Path) -> str:
    """Return the whole content of a store."""
    if not file.exists():
        return ""
    with contextlib.closing(sqlite3.connect(file)) as store:
        return "\n".join(store.iterdump())


def check_and_resume(prove: Prove, step: int) -> None:
    """Check the store's content, and resume its run."""
    store = Store(prove.root / ".unfix" / "runs.sqlite")
    runs = ProveTable(store).list_runs()
    stored = ProveTable(store).get(runs[0].id) if runs else None
    store.close()
    if stored is None:  # killed before it had stored its beginning
        return
    for cell in stored.cells:
        name, verdict = cell.guard, cell.verdict and cell.verdict.value
        assert verdict in (None, EXPECTED[name]), f"invented at step {step}"
    if stored.status == "finished":
        assert all(cell.verdict for cell in stored.cells)
        return
    resumed = prove.again("prove", "--resume", "--json")
    assert resumed.stdout, f"step {step}: {resumed.stderr}"
    run = json.loads(resumed.stdout)
    assert read_verdicts(run) == EXPECTED, f"step {step}"
    assert run["id"] == stored.id
    assert run["status"] == "finished"


@pytest.mark.parametrize(("whose", "least"), [(OF_A_WORKER, 20), (OF_A_SUPERVISOR, 15)])
def test_a_worker_or_a_supervisor_is_killed_at_each_step_and_another_takes_over(
    prove: Prove, whose: str, least: int
) -> None:
    prove.write(GUARDS[PROVEN])
    prove.write(whose, "conftest.py", head="")
    command = prove.command("--json", "-j", "1", "--seed", "0")
    _, steps = run_stepping(prove, command)
    assert steps >= least
    half = (steps + 1) // 2
    got_over_two = [
        check_two_kills(prove, command, one, one + half) for one in range(1, steps - half + 1, 5)
    ]
    assert any(got_over_two)
    wait_until(lambda: not list_living_processes(prove.root))


def test_a_side_whose_two_attempts_are_killed_is_lost(prove: Prove) -> None:
    """Such kills say nothing about a guard, so `check_two_kills` runs each by itself."""
    prove.write("".join(GUARDS.values()))
    prove.write(OF_A_SUPERVISOR, "conftest.py", head="")
    command = prove.command("--json", "-j", "1", "--seed", "0")
    done, _ = run_stepping(prove, command, 1, 2, 3)  # both tests' first attempts, and a second
    cells = json.loads(done.stdout)["cells"]
    assert "broken" in read_verdicts({"cells": cells}).values()
    assert has_lost_side(cells)


def check_two_kills(prove: Prove, command: list[str], *chosen: int) -> bool:
    """Check a run with two kills; return whether it got over both, each in a test's run.

    If a side has lost both its attempts, or the first kill ended the run, each kill has a run of
    its own.
    """
    done, taken = run_stepping(prove, command, *chosen)
    cells = json.loads(done.stdout)["cells"]
    if taken < chosen[-1] or has_lost_side(cells):
        for one in chosen:
            check_finished_run(run_stepping(prove, command, one)[0], one)
        return False
    check_finished_run(done, chosen[0])
    deaths: int = sum(cell["why"].count("SIGKILL") for cell in cells)
    return deaths == len(chosen)


def has_lost_side(cells: list[dict[str, Any]]) -> bool:
    """Return whether both attempts of a side, or of a repetition of it, were lost."""
    sides = [side for cell in cells for side in cell["sides"].values()]
    runs = [run for side in sides for run in (side, *side.get("again", []))]
    return any(run["outcome"] == Outcome.LOST for run in runs)


def check_finished_run(done: subprocess.CompletedProcess[str], step: int) -> None:
    run = json.loads(done.stdout)
    if run["cells"]:
        assert read_verdicts(run) == {PROVEN: EXPECTED[PROVEN]}, f"step {step}: {done.stderr}"
        assert run["status"] == "finished"
    else:  # a worker that dies before it could list its guards
        assert done.returncode == 3
        assert not run["green"]


def test_ctrl_c_keeps_finished_cells_and_resume_runs_the_others(prove: Prove) -> None:
    once = REQUIRED_FAILURES + REQUIRED_PASSES
    slow = (
        "@guards('toy-plain')\ndef test_slow_{0}():\n"
        f"    while len(notes('ran').split()) >= {3 * once - 1} and not notes('until'):\n"
        "        time.sleep(0.05)\n"
        "    note('ran', '{0} ')\n"
        "    assert not buggy()\n"
    )
    prove.write("".join(slow.replace("{0}", str(number)) for number in range(6)))
    running = prove.start("-j", "1")
    prove.wait_for(verdicts=2)
    running.send_signal(signal.SIGINT)
    _, output = running.communicate(timeout=PATIENCE_SECONDS)
    assert running.returncode == 130
    assert "`unfix prove --resume` continues the run" in output
    kept = json.loads(prove.again("report", "--json").stdout)
    proven = [cell["guard"][-1] for cell in kept["cells"] if cell["verdict"] == "proven"]
    assert kept["status"] == "stopped"
    assert len(proven) == 2
    (prove.shared / "until").write_text("now")
    run = json.loads(prove.again("prove", "--resume", "--json", "-j", "1").stdout)
    assert run["counts"] == {"proven": 6}
    assert run["id"] == kept["id"]
    ran = (prove.shared / "ran").read_text().split()
    assert all(ran.count(number) == once for number in proven), "a finished cell is not run again"
    wait_until(lambda: not list_living_processes(prove.root))
    again = prove.again("prove", "--resume")
    assert again.returncode == 2
    assert "is finished" in again.stderr
