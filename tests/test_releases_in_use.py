"""Managed releases stay while a process runs from them, and a requested fault always applies."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from calling import run_program
from fake_releases import VERSION, read_refusal, refusal_of_add, rewrite_mark, state_of
from fixture_types import Output

from harness.cli.main import main
from harness.releases import environment_users, installer, managed_releases
from harness.releases.managed_releases import COMPLETION_MARKER, Release

ASKED = {"SGLANG_DEBUG_REVERT_PR": "27460"}


@contextlib.contextmanager
def run_sleeper(*words: str, **how: Any) -> Iterator[int]:
    """Start a process that sleeps, with these words; yield its id."""
    program = "print(flush=True); import time; time.sleep(60)"
    with subprocess.Popen([*words, "-c", program], stdout=subprocess.PIPE, **how) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


def test_a_release_in_use_is_removed_by_force_alone(release: Release, capsys: Output) -> None:
    with run_sleeper(str(release.python)) as pid:
        code, message = read_refusal(["releases", "remove", VERSION], capsys)
        assert (code, str(pid) in message, "--force" in message) == (3, True, True)
        assert state_of(release, capsys) == "yes"
        assert main(["releases", "remove", VERSION, "--force"]) == 0
    assert not release.folder.exists()
    assert release.any_wheel is None


def test_every_process_using_a_release_is_found(release: Release, tmp_path: Path) -> None:
    activated = {"PATH": f"{release.python.parent}{os.pathsep}{os.environ['PATH']}"}
    (tmp_path / "link").symlink_to(release.folder.parent)
    linked = str(tmp_path / "link" / VERSION / "bin" / "python")
    here = f"../{VERSION}/bin/python"
    with (
        run_sleeper("env", "python", env=activated) as by_name,
        run_sleeper(here, cwd=release.folder, executable=str(release.python)) as by_place,
        run_sleeper(linked) as by_link,
        run_sleeper(sys.executable),
    ):
        users = [pid for pid, _ in environment_users.find_processes_using(release.folder)]
    assert users == sorted([by_name, by_place, by_link])


def test_a_release_or_base_in_use_is_not_reinstalled(release: Release, capsys: Output) -> None:
    rewrite_mark(release.folder, lock="0")
    for python in (release.python, managed_releases.CPU_BASE.python):
        with run_sleeper(str(python)) as pid:
            code, message = refusal_of_add(capsys)
            assert (code, str(pid) in message, "in use" in message) == (3, True, True)
            assert python.exists()
        rewrite_mark(managed_releases.CPU_BASE.folder, lock="0")


def test_an_unused_release_is_removed_and_an_unknown_one_refused(
    release: Release, capsys: Output
) -> None:
    code, message = read_refusal(["releases", "remove", VERSION, "0.5.15"], capsys)
    assert (code, "0.5.15 is not here" in message) == (2, True)
    assert state_of(release, capsys) == "yes"
    with run_sleeper(str(release.python)):
        pass
    assert main(["releases", "remove", VERSION]) == 0
    assert not release.folder.exists()


def test_what_a_stopped_removal_left_goes_with_the_next_call(release: Release) -> None:
    left = release.folder.with_name(".leaving-0.5.9-1")
    left.mkdir()
    installer.fetch_release_sources(release, lambda _: None)
    assert not left.exists()


def run_in_release(release: Release, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("UNFIX_", "PYTHON"))}
    words = [str(release.python), "-c", "print('the program ran')"]
    return run_program(words, env={**environment, **variables})


BROKEN_STARTS: dict[str, Callable[[Path], object]] = {
    "raises": lambda start: start.write_text("1 / 0"),
    "exits": lambda start: start.write_text("raise SystemExit(0)"),
    "is gone": lambda start: start.unlink(),
    "does not compile": lambda start: start.write_text("def"),
    "finds no mark": lambda start: (start.parents[3] / COMPLETION_MARKER).unlink(),
}


@pytest.mark.parametrize("broken", BROKEN_STARTS)
def test_a_process_never_runs_without_its_toggle(release: Release, broken: str) -> None:
    assert run_in_release(release, **ASKED).stdout == "the program ran\n"
    BROKEN_STARTS[broken](installer._find_site_packages(release.folder) / "unfix_start.py")
    done = run_in_release(release, **ASKED)
    assert (done.returncode, done.stdout) == (3, "")
    assert "toggles cannot be applied" in done.stderr
    assert run_in_release(release).stdout == "the program ran\n"
