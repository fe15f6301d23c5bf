"""Cells run on this machine: each kind of end has its name, and none hides another."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from calling import PATIENCE_SECONDS
from driving import Drive, make_cell
from fixture_types import Patch

from harness.core.outcomes import Outcome
from harness.matrices.schema import MachineNeeds
from harness.runs.matrix import exit_outcome, release_setup
from harness.runs.matrix.cell_attempt import CellTask
from harness.runs.matrix.cell_plan import MatrixCell
from harness.runs.matrix.cell_scheduler import CellScheduler, RetryRules, RunLocation
from harness.runs.matrix.local_executor import LocalExecutor, MachineDevices
from harness.store.matrix.values import CellAttempt


def test_each_end_has_its_name_and_none_hides_another(drive: Drive) -> None:
    ends = {
        "passed": "true",
        "failed": "exit 1",
        "error": "exit 2",
        "odd": "exit 7",
        "not-ready": "exit 3",
        "segfault": "kill -SEGV $$",
        "below": "sh -c 'kill -ABRT $$'; exit $?",
        "hang": "sleep 600",
    }
    limits = {**dict.fromkeys(ends, PATIENCE_SECONDS), "hang": 1.0}
    drive.write(*(make_cell(name, script, limit=limits[name]) for name, script in ends.items()))
    assert drive.run() == 1
    assert drive.words() == {**{name: name for name in ends}, "odd": "error", "below": "abort"}
    hows = {one.identity: one.attempts[0].how for one in drive.newest().cells}
    assert hows["segfault"] == "SIGSEGV"
    assert hows["below"] == "exit code 134: SIGABRT below a shell"
    assert hows["odd"] == "exit code 7"
    assert hows["hang"] == "ran past its limit of 1 s"


def test_a_ctrl_c_in_the_terminal_reaches_no_supervisor_of_a_cell(drive: Drive) -> None:
    """It reaches the terminal's own session, and a supervisor has to outlive the run's end."""
    drive.write(make_cell("session", "ps -o sid= -p $PPID"))
    assert drive.run() == 0
    assert int(drive.newest().cells[0].attempts[0].output) != os.getsid(0)


def test_a_command_that_is_not_here_is_not_ready_and_that_alone_ends_with_3(drive: Drive) -> None:
    gone = make_cell("gone", "", command=["no-such-program"])
    drive.write(gone, make_cell("fine", "true"))
    assert drive.run() == 3
    assert drive.words() == {"gone": "not-ready", "fine": "passed"}
    drive.write(gone, make_cell("bad", "exit 1"))
    assert drive.run() == 1


def test_the_log_lies_where_it_is_said_to_and_earlier_ones_beside_it(drive: Drive) -> None:
    drive.write(make_cell("two", "echo attempt $UNFIX_ATTEMPT; exit 1"))
    assert drive.run("--retries", "1") == 1
    folder = drive.root / ".unfix" / "matrix" / drive.newest().id / "two"
    assert (folder / "log").read_text() == "attempt 2\n"
    assert (folder / "log.1").read_text() == "attempt 1\n"
    assert {file.name for file in folder.iterdir()} == {"log", "log.1"}


def test_the_verdicts_in_printed_json_are_counted(drive: Drive) -> None:
    printed = {"counts": {"proven": 7, "toothless": 2}, "green": False}
    (drive.root / "printed.json").write_text(json.dumps(printed, indent=2) + "\n")
    command = ["sh", "-c", "echo on stderr >&2; cat printed.json; exit 1", "--json"]
    drive.write(make_cell("printing", "", command=command))
    assert drive.run() == 1
    assert drive.newest().cells[0].attempts[0].inside == {"proven": 7, "toothless": 2}


def test_a_command_that_ends_well_and_says_it_is_not_green_is_red(drive: Drive) -> None:
    (drive.root / "printed.json").write_text('{\n  "green": false\n}\n')
    lying = ["sh", "-c", "cat printed.json", "--json"]
    drive.write(make_cell("lies", "", command=lying))
    assert drive.run() == 1
    assert drive.words() == {"lies": "failed"}


def test_an_evaluations_verdicts_are_counted_too(tmp_path: Path) -> None:
    found = {"compared": [{"verdict": "same"}, {"verdict": "same"}, {"verdict": "regressed"}]}
    assert exit_outcome.count_verdicts(found) == {"same": 2, "regressed": 1}
    log = tmp_path / "log"
    log.write_text('{\n  "first": 1\n}\nwords\n{\n  "cut": \n')
    assert exit_outcome.read_printed_json(log) is None


def test_a_resource_that_this_machine_lacks_is_named_and_other_cells_run(drive: Drive) -> None:
    drive.write(
        make_cell("many", "true", cpus=4096.0),
        make_cell("npu", "true", custom={"npu": 64.0}),
        make_cell("tpu", "true", custom={"tpu": 1.0}),
        make_cell("fine", "true"),
    )
    assert drive.run() == 3
    run = drive.newest()
    assert run.counts == {"not-ready": 3, "passed": 1}
    hows = {one.identity: one.attempts[0].how for one in run.cells}
    assert "it needs 4096" in hows["many"]
    assert "has 0 tpu" in hows["tpu"]
    assert len(run.notes) == 3


def test_gpus_are_given_out_one_by_one_and_counted(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")  # a cell that needs no GPU sees none
    has = MachineDevices(8.0, ["4", "7"], "NVIDIA H200")
    show = f"echo $CUDA_VISIBLE_DEVICES >> {tmp_path}/seen; sleep 0.4"
    cells = [
        *(make_cell(f"one{n}", show, gpus=1.0, gpu="h200") for n in range(2)),
        *(make_cell(f"half{n}", show, gpus=0.5) for n in range(2)),
        make_cell("both", show, gpus=2.0),
        make_cell("none", show),
        make_cell("other", show, gpus=1.0, gpu="H100"),
        make_cell("three", show, gpus=3.0),
    ]
    attempts: dict[str, CellAttempt] = {}
    local = LocalExecutor(8, has)
    place = RunLocation("run", tmp_path / "logs", tmp_path)
    CellScheduler(cells, local, place, RetryRules(), lambda ended: attempts.update(ended)).run()
    local.close()
    visible_gpus = (tmp_path / "seen").read_text().split("\n")[:-1]
    assert visible_gpus.count("") == 1
    assert visible_gpus.count("4,7") == 1
    assert len(visible_gpus) == 6
    assert attempts["other"].how == "this machine has no GPU of the kind H100: NVIDIA H200"
    assert attempts["three"].outcome is Outcome.NOT_READY
    assert attempts["both"].device_seconds == pytest.approx(2 * attempts["both"].seconds)
    assert attempts["half0"].device_seconds == pytest.approx(attempts["half0"].seconds / 2)
    assert attempts["none"].device_seconds == 0


def test_no_gpu_is_held_twice(tmp_path: Path) -> None:
    local = LocalExecutor(8, MachineDevices(8.0, ["0", "1"]))
    task = CellTask("run", "a", 1, ["true"], {}, 5.0, str(tmp_path), str(tmp_path))
    whole, half, quarter = MachineNeeds(gpus=1.0), MachineNeeds(gpus=0.5), MachineNeeds(gpus=0.25)
    local.start(task, half)
    assert local.has_room(whole)
    local.start(task, whole)
    assert not local.has_room(whole)
    assert local.has_room(half)
    local.start(task, quarter)
    assert not local.has_room(half)
    assert local.has_room(quarter)
    local.close()


ADDER = """
import json, sys
from harness.core import paths
from harness.releases import managed_releases as managed
with open(paths.workspace_folder() / "added", "a") as file:
    file.write("x")
if (paths.workspace_folder() / "broken").exists():
    sys.exit("no disk for it")
for release in (managed.CPU_BASE, managed.get_release(sys.argv[1])):
    (release.folder / "lib" / "python3" / "site-packages").mkdir(parents=True)
    release.python.parent.mkdir()
    release.python.touch()
    marker = json.dumps(release.describe_installation(None))
    (release.folder / managed.COMPLETION_MARKER).write_text(marker)
"""


@pytest.mark.parametrize("broken", [False, True])
def test_a_release_is_added_once_for_all_cells(drive: Drive, broken: bool) -> None:
    (drive.root / "adder.py").write_text(ADDER)
    if broken:
        drive.flag("x").with_name("broken").touch()
    words = ["sh", "-c", "true", "--release", "0.5.18"]
    values = {"release": "0.5.18"}
    rest: Any = (values, "work", words, {}, MachineNeeds(), 5.0, "")
    cells = [MatrixCell(f"c{n}", *rest) for n in range(6)]
    attempts: list[tuple[str, CellAttempt]] = []
    import sys

    place = RunLocation(
        *(f"run-{os.getpid()}-{drive.root.name}-{broken}", drive.root / "logs", drive.root),
        [sys.executable, str(drive.root / "adder.py")],
    )
    local = LocalExecutor(2)
    CellScheduler(cells, local, place, RetryRules(), attempts.extend).run()
    local.close()
    assert (drive.root / "added").read_text() == "x"
    wanted = Outcome.NOT_READY if broken else Outcome.PASSED
    assert [one.outcome for _, one in attempts] == [wanted] * 6
    if broken:
        assert "`unfix releases add 0.5.18` ended 1: no disk for it" in attempts[-1][1].how


@pytest.mark.parametrize(
    ("release", "command", "needed"),
    [
        ("0.5.18", "unfix prove --release 0.5.18", "0.5.18"),
        ("0.5.18", "unfix prove --release=0.5.18", "0.5.18"),
        ("0.5.18", "unfix list", ""),
        ("current", "unfix prove current", ""),
    ],
)
def test_only_a_named_release_is_needed(release: str, command: str, needed: str) -> None:
    assert release_setup.find_needed_release({"release": release}, command.split()) == needed
