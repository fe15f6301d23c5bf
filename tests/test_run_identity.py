"""A record names unfix's commit and SGLang's sources, and says whether files differ from them."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixture_types import Patch

from harness.cli import guard_runs
from harness.core import machine, paths
from harness.guards import run_item
from harness.store.record_files import write_record


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose python/sglang git tracks, and a folder that it ignores."""
    (tmp_path / "python" / "sglang").mkdir(parents=True)
    (tmp_path / "python" / "sglang" / "__init__.py").touch()
    (tmp_path / ".gitignore").write_text(".venv\n")
    for words in ("init -q", "add .", "-c user.name=a -c user.email=a@b commit -qm first"):
        subprocess.run(["git", "-C", str(tmp_path), *words.split()], check=True)
    return tmp_path


@pytest.fixture
def own_checkout(checkout: Path, monkeypatch: Patch) -> Iterator[Path]:
    """A checkout in the place of this project's."""
    monkeypatch.setattr(paths, "project_folder", lambda: checkout)
    machine.describe_commit.cache_clear()
    yield checkout
    machine.describe_commit.cache_clear()


def test_the_commit_is_that_of_the_tree_as_it_is_when_first_named(own_checkout: Path) -> None:
    commit = machine.describe_commit()
    assert len(commit) == 12
    assert machine.collect_machine_facts()["unfix"] == commit
    (own_checkout / "test_new.py").touch()  # git does not track it, and it may be a guard
    assert machine.describe_commit() == commit
    machine.describe_commit.cache_clear()  # as in another process
    assert machine.describe_commit() == f"{commit}, changed"


def test_a_commit_that_no_remote_has_is_named_with_the_newest_one_that_has(
    own_checkout: Path,
) -> None:
    def run_git(words: str) -> str:
        command = ["git", "-C", str(own_checkout), "-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.check_output([*command, *words.split()], text=True).strip()

    def name_commit() -> str:
        machine.describe_commit.cache_clear()
        return machine.describe_commit()

    public = name_commit()
    run_git("update-ref refs/remotes/origin/main HEAD")
    assert name_commit() == public == run_git("rev-parse --short=12 HEAD")
    run_git("commit --allow-empty -qm second")
    assert name_commit() == f"{run_git('rev-parse --short=12 HEAD')}, 1 commit after {public}"
    run_git("commit --allow-empty -qm third")
    (own_checkout / "new.py").touch()
    own = run_git("rev-parse --short=12 HEAD")
    assert name_commit() == f"{own}, 2 commits after {public}, changed"


def test_sources_are_named_by_folder_commit_and_change(checkout: Path) -> None:
    python = checkout / "python"
    clean = machine.describe_sources(python)
    assert clean.startswith(f"{python} at ")
    (python / "sglang" / "__init__.py").write_text("1\n")
    assert machine.describe_sources(python) == f"{clean}, changed"


def test_an_installed_release_inside_a_checkout_has_no_commit(checkout: Path) -> None:
    installed = checkout / ".venv"
    (installed / "sglang").mkdir(parents=True)
    (installed / "sglang" / "__init__.py").touch()
    assert machine.describe_sources(installed) == str(installed)


@pytest.mark.parametrize("is_link", [False, True])
@pytest.mark.parametrize("by_link", [False, True])
def test_a_failure_names_a_release_alike_however_its_folder_is_reached(
    tmp_path: Path, monkeypatch: Patch, is_link: bool, by_link: bool
) -> None:
    home, real = tmp_path / "home", tmp_path / ("elsewhere" if is_link else "home/.releases")
    (real / "0.5.23").mkdir(parents=True)
    if is_link:
        home.mkdir()
        (home / ".releases").symlink_to(real)
    monkeypatch.setenv("UNFIX_HOME", str(home))
    root = home / ".releases" if by_link else real
    try:
        raise RuntimeError(f"Failed at {root}/0.5.23/lib/sglang/tree.cuh:92: an illegal access")
    except RuntimeError as error:
        descriptions = [run_item.format_own_traceback(error), run_item.summarize_error(error)]
    for text in descriptions:
        assert "RuntimeError: Failed at .releases/0.5.23/lib/sglang/tree.cuh:92: an ill" in text
        assert str(tmp_path) not in text


def test_a_record_names_no_folder_of_the_machine_that_built_a_module(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    """A module may come from the builds of another checkout, whose path the compiler wrote."""
    monkeypatch.setenv("UNFIX_HOME", str(tmp_path))
    file = tmp_path / "record.json"
    message = (
        "wrote /tmp/x.py\n/home/o/.releases/0.5.23/t.cuh:92: '/a/.releases/b', x(1),/c/.releases/d"
    )
    write_record(file, json.dumps({"detail": message}))
    found = json.loads(file.read_text())["detail"]
    assert found == "wrote /tmp/x.py\n.releases/0.5.23/t.cuh:92: '.releases/b', x(1),.releases/d"


def test_a_text_of_slashes_alone_is_read_once() -> None:
    """A guard may print anything."""
    text = "/" * 1_000_000
    assert paths.shorten_release_paths(text) == text
    assert paths.shorten_release_paths("in home/.releases/0.5.9") == "in home/.releases/0.5.9"


def install_package(folder: Path, name: str, version: str) -> None:
    information = folder / f"{name}-{version}.dist-info"
    information.mkdir(parents=True)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (information / "METADATA").write_text(metadata)


def test_a_package_that_a_command_installs_is_listed_behind_it(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    """One process may install a release and then run tests on it."""
    folder = tmp_path / "installed"
    monkeypatch.setenv("PYTHONPATH", str(folder))
    python = Path(sys.executable)
    assert "triton 9.1" not in machine.list_installed_packages(python)
    install_package(folder, "triton", "9.1")
    assert "triton 9.1\n" in machine.list_installed_packages(python)
    assert machine.collect_machine_facts(str(python))["versions"]["triton"] == "9.1"
    shutil.rmtree(folder / "triton-9.1.dist-info")
    install_package(folder, "triton", "9.2")
    install_package(folder, "sglang_kernel", "9.3")
    versions = machine.collect_machine_facts(str(python))["versions"]
    assert (versions["triton"], versions["sglang-kernel"]) == ("9.2", "9.3")
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("nothing has changed"))
        assert "triton 9.2\n" in machine.list_installed_packages(python)


def test_an_environment_that_could_not_be_read_is_read_again(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ -e ready ] && exec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        assert machine.collect_machine_facts(str(python))["versions"] == {}
        (tmp_path / "ready").touch()
        assert "python" in machine.collect_machine_facts(str(python))["versions"]


def test_an_edit_of_a_suite_between_two_commands_is_seen(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(paths, "project_folder", lambda: tmp_path)
    suite = tmp_path / "suites" / "one" / "test_one.py"
    suite.parent.mkdir(parents=True)
    suite.write_text("WIDTH = 1\n")
    os.utime(suite, (1, 1))
    before = guard_runs.digest_project_guards()
    assert guard_runs.digest_project_guards() == before
    suite.write_text("WIDTH = 2\n")
    os.utime(suite, (1, 1))  # the same size, and the same time
    edited = guard_runs.digest_project_guards()
    (suite.parent / "test_two.py").touch()
    assert len({before, edited, guard_runs.digest_project_guards()}) == 3
