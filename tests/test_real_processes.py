"""Whole commands as real processes: most other tests run them as forks (`tests/forked.py`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from calling import PATIENCE_SECONDS, run_program

from harness.core import paths

TOY = Path(__file__).parent / "toy"
GUARDS = """
import pytest
from sglang import forms


@pytest.mark.guards("toy-plain")
def test_notices():
    assert forms.plain(1, 2) == 4


@pytest.mark.guards("toy-plain")
def test_notices_nothing():
    forms.plain(1, 2)
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "guards").mkdir()
    (tmp_path / "guards" / "test_forms.py").write_text(GUARDS)
    return tmp_path


def run_unfix(workspace: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    search_path = os.pathsep.join((str(paths.project_folder()), str(TOY)))
    ours = {"UNFIX_HOME": str(workspace), "PYTHONPATH": search_path}
    command = [sys.executable, "-m", "harness", *words]
    return run_program(
        command, cwd=workspace, env={**os.environ, **ours, **variables}, timeout=PATIENCE_SECONDS
    )


def prove_toy(workspace: Path, *words: str) -> tuple[int, dict[str, Any]]:
    options = ("--release", "current", "--json", "--toggles", str(TOY / "toggles"))
    done = run_unfix(workspace, "prove", "toy-plain", "guards", *options, *words)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_proof_in_real_processes_gives_each_guard_its_verdict(workspace: Path) -> None:
    code, run = prove_toy(workspace)
    verdicts = {cell["guard"].partition("::")[2]: cell["verdict"] for cell in run["cells"]}
    assert (code, verdicts) == (1, {"test_notices": "proven", "test_notices_nothing": "toothless"})


def test_a_stored_run_is_shown_again_by_another_process(workspace: Path) -> None:
    _, run = prove_toy(workspace)
    shown = run_unfix(workspace, "report", "--json")
    assert json.loads(shown.stdout)["cells"] == run["cells"]


def test_a_command_runs_the_reverted_code_in_its_children(workspace: Path) -> None:
    call = "from sglang import forms; print(forms.plain(1, 2))"
    program = f"import subprocess, sys; {call}; subprocess.run([sys.executable, '-c', {call!r}])"
    toggles = ("--toggles", str(TOY / "toggles"))
    command = ("--", sys.executable, "-c", program)
    done = run_unfix(workspace, "exec", *toggles, "--revert", "toy-plain", *command)
    environment = {**os.environ, "PYTHONPATH": str(TOY)}
    plain = run_program([sys.executable, "-c", call], env=environment)
    first, second = done.stdout.split()
    assert first == second != plain.stdout.strip()
    assert "in 2 processes, 2 of which loaded patched code" in done.stderr
