"""Checkouts that share one home: releases are installed once, and each runs its own engine."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from calling import run_bare, run_program, start_program
from fake_releases import ASKING, VERSION, install_fake_release, set_up_releases
from fixture_types import Patch

from harness.core import paths
from harness.releases import checkouts, managed_releases
from harness.releases.managed_releases import COMPLETION_MARKER, Release

REAL = "0.5.18"
SHOWS = """
import json, sys
import harness, sgl_kernel
print(json.dumps([harness.__file__, sgl_kernel.__file__]))
"""


@dataclass(frozen=True)
class EngineCheckout:
    """A copy of this checkout, with its name in its engine."""

    root: Path
    home: Path

    @property
    def engine(self) -> Path:
        return self.root / "harness"

    def variables(self, **more: str) -> dict[str, str]:
        ours = ("UNFIX_", "PYTHON", "SGLANG_", "PIP_")
        variables = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        # Any call of this pip fails.
        offline = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0"}
        closed = {**offline, "PIP_CONFIG_FILE": os.devnull, "UNFIX_HOME": str(self.home)}
        return {**variables, **closed, "PYTHONPATH": str(self.root), **more}

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", "-m", "harness", *words]
        return start_program(command, env=self.variables(), cwd="/")

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "harness", *words]
        return run_program(command, env=self.variables(), cwd="/", timeout=300)


def copy_if_there(source: str, target: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # another process has replaced its bytecode
        shutil.copy2(source, target)


def copy_live_tree(source: Path, target: Path) -> None:
    """Copy a folder whose bytecode other processes write meanwhile.

    The copy of bytecode stays valid: it has its original's modification time.
    """
    ignored = shutil.ignore_patterns("*.pyc.*")  # Python's temporary names
    shutil.copytree(source, target, ignore=ignored, copy_function=copy_if_there)


def make_checkout(folder: Path, home: Path) -> EngineCheckout:
    for name in ("harness", "toggles", "fixtures", "reports"):
        copy_live_tree(paths.project_folder() / name, folder / name)
    shutil.copy(paths.project_folder() / "conftest.py", folder)
    (folder / "suites").mkdir()
    (folder / "suites" / "proof_exceptions.yaml").write_text("exceptions: []\n")
    (folder / "harness" / "whose.py").write_text(f"NAME = {folder.name!r}\n")
    return EngineCheckout(folder, home)


def engine_of(done: subprocess.CompletedProcess[str]) -> Path:
    """Return the engine that a program ran; assert that its stand-ins belong to it."""
    assert done.returncode == 0, done.stderr
    harness, kernel = (Path(place).resolve() for place in json.loads(done.stdout))
    assert kernel.is_relative_to(harness.parent / "releases" / "standins")
    return harness.parent


@pytest.fixture
def release(tmp_path: Path, monkeypatch: Patch) -> Release:
    """A release of a few bytes that this checkout installed."""
    set_up_releases(tmp_path / "home", monkeypatch)
    return install_fake_release()


@pytest.fixture
def other(tmp_path: Path, release: Release) -> EngineCheckout:
    checkout = make_checkout(tmp_path / "other", tmp_path / "home")
    done = checkout.call("releases", "add", VERSION)
    assert (done.returncode, done.stderr) == (0, "")
    return checkout


def read_marks(home: Path) -> list[int]:
    paths = sorted(home.glob(f".releases/*/{COMPLETION_MARKER}"))
    return [path.stat().st_mtime_ns for path in paths]


def test_a_release_is_shared_between_checkouts(tmp_path: Path, release: Release) -> None:
    before = read_marks(tmp_path / "home")
    checkout = make_checkout(tmp_path / "other", tmp_path / "home")
    done = checkout.call("releases", "add", VERSION)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{VERSION}: here\n", "")
    assert (read_marks(tmp_path / "home"), release.is_ready) == (before, True)


def test_a_bare_process_uses_the_newest_engine(release: Release, other: EngineCheckout) -> None:
    requested = {ASKING[0]: "27460"}
    assert (
        engine_of(run_bare(release, SHOWS))
        == engine_of(run_bare(release, SHOWS, **requested))
        == other.engine
    )
    checkouts.register_checkout()  # it is known: used again, not registered again
    assert engine_of(run_bare(release, SHOWS)) == other.engine
    checkouts.register_checkout(make_newest=True)
    assert (
        engine_of(run_bare(release, SHOWS))
        == engine_of(run_bare(release, SHOWS, **requested))
        == paths.HARNESS_FOLDER
    )


def test_a_deleted_engine_is_not_used(release: Release, other: EngineCheckout) -> None:
    shutil.rmtree(other.root)
    assert engine_of(run_bare(release, SHOWS, **{ASKING[0]: "27460"})) == paths.HARNESS_FOLDER
    shutil.rmtree(checkouts.get_checkout_folder())
    done = run_bare(release, SHOWS, **{ASKING[0]: "27460"})
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("unfix: toggles cannot be applied: no checkout is registered")
    assert "unfix releases add" in done.stderr


def test_a_process_uses_only_the_named_engine(release: Release, other: EngineCheckout) -> None:
    for engine in (paths.HARNESS_FOLDER, other.engine):
        for requested in ({}, {ASKING[0]: "27460"}):
            requested = {**requested, checkouts.HARNESS_VARIABLE: str(engine)}
            assert engine_of(run_bare(release, SHOWS, **requested)) == engine
    shutil.rmtree(other.root)
    requested = {ASKING[0]: "27460", checkouts.HARNESS_VARIABLE: str(other.engine)}
    done = run_bare(release, SHOWS, **requested)
    assert (done.returncode, done.stdout) == (3, "")
    assert f"{other.engine} is not registered" in done.stderr


def test_nested_commands_use_their_own_engines(release: Release, other: EngineCheckout) -> None:
    words = [str(release.python), "-c", SHOWS]
    checkouts.register_checkout(make_newest=True)
    assert engine_of(other.call("exec", "--release", VERSION, "--", *words)) == other.engine
    inside = [sys.executable, "-P", "-m", "harness", "exec", "--release", VERSION, "--", *words]
    program = f"import os, subprocess; os.environ['PYTHONPATH'] = {str(paths.project_folder())!r}; "
    program += f"raise SystemExit(subprocess.call({inside}))"
    done = other.call("exec", "--release", VERSION, "--", sys.executable, "-c", program)
    assert engine_of(done) == paths.HARNESS_FOLDER


def test_a_home_may_be_moved(tmp_path: Path, release: Release) -> None:
    (tmp_path / "home").rename(tmp_path / "moved")
    there = tmp_path / "moved" / ".releases" / VERSION
    python = there / "bin" / "python"
    done = run_program([python, "-c", "import torch; print(torch.__file__)"])
    assert Path(done.stdout.strip()).is_relative_to(there.parent / "base"), done.stderr


TOGGLE = """
id: eviction
title: the engine of {name}
family: eviction
symptom: accuracy
upstream: []
devices: [cpu]
variants:
  - releases: ">=0.5.9"
    target: sglang.srt.mem_cache.evict_policy:LRUStrategy.get_priority
    edits:
      - fixed: return node.last_access_time
        buggy: return -node.last_access_time
"""
# Its child process imports SGLang again.
GUARD = """
import os, subprocess, sys
import pytest, sgl_kernel
from sglang.srt.mem_cache.evict_policy import LRUStrategy
from harness import whose

BELOW = "import sglang.srt.mem_cache.evict_policy; from harness import whose; print(whose.NAME)"

class Node:
    last_access_time = 1

@pytest.mark.guards("eviction")
def test_it_is_evicted_by_time():
    if whose.NAME != {name!r} or not sgl_kernel.__file__.startswith({root!r} + os.sep):
        raise RuntimeError(f"{{whose.__file__}}, {{sgl_kernel.__file__}}")
    found = LRUStrategy().get_priority(Node)
    variables = {{**os.environ, "SGLANG_DEBUG_REVERT_PR": "eviction", "PYTHONPATH": ""}}
    done = subprocess.run(
        [sys.executable, "-c", BELOW], env=variables, capture_output=True, text=True, cwd="/"
    )
    reverted = "REVERTED eviction: the engine of {toggle}" in done.stderr
    if not reverted or done.stdout != {name!r} + "\\n":
        if found == 1:
            raise RuntimeError(done.stdout + done.stderr)
        return  # passes with the fix reverted, so the guard is not proven
    assert found == 1
"""


MODULES = ("__init__", "version", "srt/__init__", "srt/mem_cache/__init__")
POLICY = "srt/mem_cache/evict_policy"


def copy_environment(release: Release, folder: Path) -> None:
    """Install a copy of a real environment, with one module as its SGLang: that imports at once."""
    site = release.site_packages
    assert release.is_current(), f"unfix releases add {release.name}"
    assert site is not None
    there = folder / site.relative_to(release.folder)
    there.mkdir(parents=True)
    (folder / "bin").symlink_to(release.folder / "bin")
    for name in ("pyvenv.cfg", COMPLETION_MARKER):
        shutil.copy(release.folder / name, folder)
    for entry in site.iterdir():
        if entry.name != "sglang":
            (there / entry.name).symlink_to(entry)
    for name in MODULES:
        module = there / "sglang" / f"{name}.py"
        module.parent.mkdir(exist_ok=True)
        module.touch()
    shutil.copy(site / "sglang" / f"{POLICY}.py", there / "sglang" / f"{POLICY}.py")


@pytest.fixture
def real_home(tmp_path: Path) -> Path:
    """Return a home with a real release, and the base that it stands on."""
    home = tmp_path / "home"
    (home / ".releases").mkdir(parents=True)
    base = managed_releases.CPU_BASE
    (home / ".releases" / base.name).symlink_to(base.folder)
    copy_environment(managed_releases.get_release(REAL), home / ".releases" / REAL)
    return home


def start_proof(home: Path, name: str, toggle: str, engine: str) -> subprocess.Popen[str]:
    """Start a proof in a new checkout; its guard expects the toggle and engine of these names."""
    checkout = make_checkout(home.parent / name, home)
    guard = home.parent / f"test_{name}.py"
    guard.write_text(GUARD.format(name=engine, toggle=toggle, root=str(checkout.root)))
    (checkout.root / "toggles" / "eviction.yaml").write_text(TOGGLE.format(name=name))
    return checkout.start("prove", "eviction", "--release", REAL, "--json", "--", str(guard))


def read_proof(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return the one cell's verdict, and all that the proof wrote to stderr."""
    output, messages = process.communicate(timeout=300)
    assert output, messages
    [cell] = json.loads(output)["cells"]
    assert process.returncode == (0 if cell["verdict"] == "proven" else 1)
    return cell["verdict"], messages


def test_two_checkouts_prove_at_the_same_time_and_neither_install_nor_mix(real_home: Path) -> None:
    """Over a real release: worker, planner, toggles, stand-ins and a test's child processes."""
    before = read_marks(real_home)
    for process in [start_proof(real_home, name, name, name) for name in ("first", "second")]:
        verdict, messages = read_proof(process)
        assert verdict == "proven", messages
        assert "install" not in messages
    assert read_marks(real_home) == before
