"""SIGKILL between any two steps, of the run, its worker or a keeper: nothing is lost or made up.

Each step is one call of a function; the process is killed as it begins and, next time, as it ends.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from calling import living
from proving import Prove

GUARDS = """
@guards("toy-plain")
def test_proven():
    assert not buggy()

@guards("toy-plain")
def test_toothless():
    buggy()
"""
EXPECTED = {"test_toy.py::test_proven": "proven", "test_toy.py::test_toothless": "toothless"}

# Counts the steps in a file that all processes share, and kills whoever takes the chosen one, once.
STEPS = """
import functools, os, signal

def step(file=os.environ.get("STEPS"), chosen=int(os.environ.get("CHOSEN", "-1"))):
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(handle, b".")
    if os.fstat(handle).st_size == chosen:
        os.kill(os.getpid(), signal.SIGKILL)

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
from harness.cli import main
from harness.prove import run, lanes
from harness.store.prove.table import Proofs
for name in ("begin", "met", "plan", "side", "judged", "end"):
    stepped(Proofs, name)
for owner, name in ((run.Proving, "_take"), (lanes.GuardWorker, "__init__")):
    stepped(owner, name)
sys.exit(main.main(sys.argv[1:]))
"""
OF_A_WORKER = f"""{STEPS}
import sys
from harness.prove import keeper
worker = sys.modules["__main__"]
for name in ("_task", "fork", "_reap", "say", "heard"):
    stepped(worker.Worker, name)
"""
OF_A_KEEPER = f"""{STEPS}
count = step
def step():
    if os.getsid(0) == os.getpid():  # a keeper, and not the test it looks after
        count()
from harness.prove import keeper
for name in ("_keep", "_wait", "_write", "_tail"):
    stepped(keeper, name)
"""


def verdicts(run: dict[str, Any]) -> dict[str, str | None]:
    return {cell["guard"]: cell.get("verdict") for cell in run["cells"]}


def stepping(prove: Prove, chosen: int) -> dict[str, str]:
    return {**prove.environment, "STEPS": str(prove.root / "steps"), "CHOSEN": str(chosen)}


def steps_of(prove: Prove, command: list[str]) -> int:
    """How many steps there are, with nobody killed."""
    subprocess.run(command, cwd=prove.root, env=stepping(prove, -1), capture_output=True)
    count = (prove.root / "steps").stat().st_size
    (prove.root / "steps").unlink()
    return count


def test_the_run_is_killed_at_each_step_and_goes_on(prove: Prove) -> None:
    prove.write(GUARDS)
    driver = prove.root / "driver.py"
    driver.write_text(OF_THE_RUN)
    words = prove.command("--json", "-j", "1")[3:]
    command = [sys.executable, str(driver), *words]
    steps = steps_of(prove, command)
    assert steps > 30
    # Neighbours with nothing written between them are one state of the store.
    for chosen in range(1, steps + 1, 3):
        (prove.root / "steps").unlink(missing_ok=True)
        for file in (prove.root / ".unfix").glob("runs.sqlite*"):
            file.unlink()
        killed = subprocess.run(
            command, cwd=prove.root, env=stepping(prove, chosen), capture_output=True
        )
        assert killed.returncode == -signal.SIGKILL, f"step {chosen}"
        listed = json.loads(prove.again("report", "--list", "--json").stdout)
        if not listed:  # killed before it had written that it began
            continue
        kept = json.loads(prove.again("report", "--json").stdout)
        for guard, verdict in verdicts(kept).items():
            assert verdict in (None, EXPECTED[guard]), f"made up at step {chosen}"
        if kept["status"] == "finished":
            assert verdicts(kept) == EXPECTED
            continue
        resumed = prove.again("prove", "--resume", "--json")
        assert resumed.stdout, f"step {chosen}: {resumed.stderr}"
        run = json.loads(resumed.stdout)
        assert verdicts(run) == EXPECTED, f"step {chosen}"
        assert run["id"] == kept["id"]
        assert run["status"] == "finished"
    time.sleep(0.2)
    assert living(prove.root) == []


@pytest.mark.parametrize(("whose", "least", "every"), [(OF_A_WORKER, 20, 3), (OF_A_KEEPER, 15, 3)])
def test_a_worker_or_a_keeper_is_killed_at_each_step_and_another_takes_over(
    prove: Prove, whose: str, least: int, every: int
) -> None:
    prove.write(GUARDS)
    prove.write(whose, "conftest.py", head="")
    command = prove.command("--json", "-j", "1")
    steps = steps_of(prove, command)
    assert steps >= least
    for chosen in range(1, steps + 1, every):
        (prove.root / "steps").unlink(missing_ok=True)
        done = subprocess.run(
            command, cwd=prove.root, env=stepping(prove, chosen), capture_output=True, text=True
        )
        run = json.loads(done.stdout)
        if run["cells"]:
            assert verdicts(run) == EXPECTED, f"step {chosen}: {done.stderr}"
            assert run["status"] == "finished"
        else:  # a worker that dies before it could say what there is
            assert done.returncode == 3
            assert not run["green"]
    assert living(prove.root) == []


def test_ctrl_c_keeps_what_is_done_and_resume_goes_on(prove: Prove) -> None:
    slow = (
        "@guards('toy-plain')\ndef test_slow_{0}():\n    time.sleep(0.3)\n"
        "    open(os.path.join(os.environ['UNFIX_HOME'], 'ran'), 'a').write('{0} ')\n"
        "    assert not buggy()\n"
    )
    prove.write("".join(slow.format(number) for number in range(6)))
    running = prove.start("-j", "1")
    prove.wait_for(verdicts=2)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=20)
    assert running.returncode == 130
    assert "`unfix prove --resume` goes on" in said
    kept = json.loads(prove.again("report", "--json").stdout)
    proven = [cell["guard"][-1] for cell in kept["cells"] if cell["verdict"] == "proven"]
    assert kept["status"] == "stopped"
    assert 2 <= len(proven) < 6
    run = json.loads(prove.again("prove", "--resume", "--json", "-j", "1").stdout)
    assert run["counts"] == {"proven": 6}
    assert run["id"] == kept["id"]
    ran = (prove.root / "ran").read_text().split()
    assert all(ran.count(number) == 2 for number in proven), "what was done is not done again"
    assert living(prove.root) == []
    again = prove.again("prove", "--resume")
    assert again.returncode == 2
    assert "nothing to resume" in again.stderr
