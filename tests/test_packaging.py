"""The wheel: one top-level package, which contains the project's data and works from anywhere."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from calling import run_program
from checkout import copy_of_the_tree

from harness import __version__


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this checkout that is in use."""
    tree = copy_of_the_tree(tmp_path_factory.mktemp("checkout") / "tree")
    (tree / ".releases").mkdir()
    (tree / ".releases" / "large").touch()
    (tree / "harness" / "__pycache__").mkdir()
    (tree / "harness" / "__pycache__" / "paths.cpython-311.pyc").touch()
    return tree


@pytest.fixture(scope="module")
def wheel(tree: Path) -> Path:
    out = tree.with_name("out")
    run_pip(
        "wheel", str(tree), "-q", "--no-deps", "-w", str(out),
        *(["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []),
    )  # fmt: skip
    wheels = list(out.iterdir())
    assert len(wheels) == 1
    return wheels[0]


@pytest.fixture(scope="module")
def files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        return set(archive.namelist())


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with only the wheel installed."""
    target = tmp_path_factory.mktemp("installed") / "site"
    options = ("-q", "--no-deps", "--no-index", "--no-compile")
    run_pip("install", *options, "--target", str(target), str(wheel))
    return target


def run_pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    done = run_program(command)
    assert done.returncode == 0, done.stderr


def call_wheel(
    installed: Path, cwd: Path, *words: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Call `python -m harness` from the installed wheel, without the rest of the project."""
    own = ("UNFIX_", "SGLANG_", "PRE_COMMIT")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    command = [sys.executable, "-m", "harness", *words]
    return run_program(command, cwd=cwd, env={**kept, "PYTHONPATH": str(installed), **variables})


def kept_below(folder: Path) -> set[str]:
    """Return git's files in a folder of the checkout, as paths below it."""
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.name != ".gitkeep"
    }


def test_the_wheel_holds_one_top_level_package(files: set[str]) -> None:
    tops = {name.partition("/")[0] for name in files}
    assert tops == {"harness", f"unfix-{__version__}.dist-info"}


@pytest.mark.parametrize("folder", ["toggles", "suites", "fixtures", "bench/recorded/proofs"])
def test_the_wheel_carries_the_projects_data(files: set[str], tree: Path, folder: str) -> None:
    carried = f"harness/carried/{folder}/"
    packed = {name.removeprefix(carried) for name in files if name.startswith(carried)}
    assert packed - {".gitkeep"} == kept_below(tree / folder)
    assert packed


def test_the_wheel_holds_the_engine_without_build_outputs(files: set[str], tree: Path) -> None:
    engine = {f"harness/{name}" for name in kept_below(tree / "harness")}
    packed = {n for n in files if n.startswith("harness/") and "/carried/" not in n}
    assert packed == engine
    for needed in (
        "releases/locks/base.txt",
        "releases/locks/0.5.23.txt",
        "releases/standins/sgl_kernel/__init__.py",
        "releases/standins/_refusing.py",
        "releases/standins_npu/torch_npu/__init__.py",
        "startup/unfix_start.py",
        "startup/sitecustomize.py",
    ):
        assert f"harness/{needed}" in files


def test_the_wheel_names_its_command_and_the_python_it_needs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        info = f"unfix-{__version__}.dist-info"
        metadata = archive.read(f"{info}/METADATA").decode().splitlines()
        commands = archive.read(f"{info}/entry_points.txt").decode()
    assert wheel.name == f"unfix-{__version__}-py3-none-any.whl"
    assert "Requires-Python: >=3.11" in metadata
    assert "unfix = harness.cli.main:main" in commands


def list_ids(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)["toggles"]
    return [row["id"] for row in rows]


def test_the_installed_wheel_lists_its_toggles(site: Path, tree: Path, tmp_path: Path) -> None:
    ids = list_ids(call_wheel(site, tmp_path, "list", "--json"))
    assert sorted(ids) == sorted(path.stem for path in (tree / "toggles").glob("*.yaml"))
    assert not list(tmp_path.iterdir())


def test_the_wheels_toggles_are_listed(
    site: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    fewer = tmp_path_factory.mktemp("fewer") / "site"
    shutil.copytree(site, fewer)
    for path in (fewer / "harness" / "carried" / "toggles").iterdir():
        if path.name != "27460.yaml":
            path.unlink()
    assert list_ids(call_wheel(fewer, fewer.parent, "list", "--json")) == ["27460"]


def test_installed_it_keeps_releases_where_one_works(site: Path, tmp_path: Path) -> None:
    done = call_wheel(site, tmp_path, "doctor", "--json")
    found = {line["name"]: line["found"] for line in json.loads(done.stdout)}
    assert found["disk"].endswith(str(tmp_path))
    assert str(site) in found["toggles"]
    done = call_wheel(site, tmp_path, "test")  # its own tests need a checkout
    assert (done.returncode, done.stdout) == (2, "")
    assert "checkout" in done.stderr


def test_as_a_hook_it_keeps_its_files_in_the_users_cache(site: Path, tmp_path: Path) -> None:
    """pre-commit runs hooks in the repository's folder, which `git add` may take in whole."""
    variables = {"PRE_COMMIT": "1", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = call_wheel(site, tmp_path, "doctor", "--json", **variables)
    found = {line["name"]: line["found"] for line in json.loads(done.stdout)}
    assert found["disk"].endswith(str(tmp_path / "cache" / "unfix"))
