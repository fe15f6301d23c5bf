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
from harness.core import paths
from harness.core.outcomes import Outcome
from harness.guards import run_item
from harness.releases import managed_releases


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this checkout that is in use."""
    tree = copy_of_the_tree(tmp_path_factory.mktemp("checkout") / "tree")
    (tree / ".releases").mkdir()
    (tree / ".releases" / "large").touch()
    (tree / "harness" / "__pycache__").mkdir()
    (tree / "harness" / "__pycache__" / "paths.cpython-311.pyc").touch()
    (tree / "reports" / "out").mkdir()
    (tree / "reports" / "out" / "proof.html").touch()
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
    """Call `python -m unfix` from the installed wheel, without the rest of the project."""
    own = ("UNFIX_", "SGLANG_", "PRE_COMMIT")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    command = [sys.executable, "-m", "unfix", *words]
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
    assert tops == {"unfix", f"unfix-{__version__}.dist-info"}


CARRIED = ["toggles", "suites", "fixtures", "reports", "bench/recorded/proofs"]


@pytest.mark.parametrize("folder", CARRIED)
def test_the_wheel_carries_the_projects_data(files: set[str], tree: Path, folder: str) -> None:
    carried = f"unfix/carried/{folder}/"
    packed = {name.removeprefix(carried) for name in files if name.startswith(carried)}
    kept = {name for name in kept_below(tree / folder) if not name.startswith("out/")}
    assert packed - {".gitkeep"} == kept  # and no page of a run
    assert packed


def test_the_wheel_holds_the_engine_without_build_outputs(files: set[str], tree: Path) -> None:
    engine = {f"unfix/{name}" for name in kept_below(tree / "harness")}
    packed = {n for n in files if n.startswith("unfix/") and "/carried/" not in n}
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
        assert f"unfix/{needed}" in files


def test_the_wheel_names_its_command_and_the_python_it_needs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        info = f"unfix-{__version__}.dist-info"
        metadata = archive.read(f"{info}/METADATA").decode().splitlines()
        commands = archive.read(f"{info}/entry_points.txt").decode()
    assert wheel.name == f"unfix-{__version__}-py3-none-any.whl"
    assert "Requires-Python: >=3.11" in metadata
    assert "unfix = unfix.cli.main:main" in commands
    assert "harness" not in commands
    assert "Provides-Extra: sanitizer" in metadata


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
    for path in (fewer / "unfix" / "carried" / "toggles").glob("*.yaml"):
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


# A project that has the wheel, and torch and Triton of its own.

KERNELS = """
import triton
import triton.language as tl


@triton.jit
def copy_block(x, y, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at), mask=at < count)
"""
TESTS = """
import harness  # of this project
import torch
from kernels import copy_block


def test_copy():
    x = torch.arange(harness.LENGTH, device="cuda")
    y = torch.empty_like(x)
    copy_block[(2,)](x, y, 12, BLOCK=8)
    assert torch.equal(x, y)
"""
LOADED = """
import sys


def pytest_sessionfinish():
    print("ours:", *sorted(name for name in sys.modules if name.startswith("unfix")))
"""


class ForeignProject:
    """A folder with kernels and their tests, and a Python that knows nothing of a checkout."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder, base = folder / "project", managed_releases.CPU_BASE
        self.python = folder / "environment" / "bin" / "python"
        words = ["-m", "venv", "--without-pip", str(folder / "environment")]
        assert run_program([str(base.python.resolve()), *words]).returncode == 0
        (site,) = (folder / "environment").glob("lib/python3*/site-packages")
        (site / "own.pth").write_text(f"{base.site_packages}\n")  # torch, Triton, pytest
        options = ("-q", "--no-deps", "--no-index", "--no-compile")
        run_pip("install", *options, "--target", str(site), str(wheel))
        self.folder.mkdir()
        (self.folder / "test_copy.py").write_text(TESTS)
        (self.folder / "conftest.py").write_text(LOADED)
        (self.folder / "harness").mkdir()
        (self.folder / "harness" / "__init__.py").write_text("LENGTH = 12.0\n")
        self.cache = folder / "cache"

    def test(self, kernels: str, *words: str) -> subprocess.CompletedProcess[str]:
        (self.folder / "kernels.py").write_text(kernels)
        own = ("UNFIX_", "SGLANG_", "PYTHON", "PYTEST_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        command = [str(self.python), "-m", "pytest", "-p", "no:cacheprovider", *words]
        # The shared base has an extension of torch for SGLang, which a project has not.
        variables = {"XDG_CACHE_HOME": str(self.cache), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        return run_program(command, cwd=self.folder, env={**kept, **variables})


@pytest.fixture(scope="module")
def project(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> ForeignProject:
    if not managed_releases.CPU_BASE.is_current():
        pytest.skip("the releases' shared base is not installed")
    return ForeignProject(tmp_path_factory.mktemp("foreign"), wheel)


REPAIRED = KERNELS.replace("tl.load(x + at)", "tl.load(x + at, mask=at < count)")


@pytest.mark.parametrize("parallel", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_a_project_with_the_wheel_runs_its_tests_under_check(
    project: ForeignProject, parallel: tuple[str, ...]
) -> None:
    done = project.test(KERNELS, "--sanitize=bounds,races", *parallel)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "OutOfBounds: copy_block read 4 bytes past the end of x" in done.stdout
    assert "kernels.py:9  tl.store(y + at, tl.load(x + at), mask=at < count)" in done.stdout
    assert "test_copy.py:10\n" in done.stdout  # where it was launched
    summary = "checked 1 launch of 1 kernel in 1 test (bounds, races): "
    assert f"{summary}1 report" in done.stdout
    done = project.test(REPAIRED, "--sanitize", *parallel)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "in 1 test (bounds, overflow, races, uninitialized): no reports" in done.stdout
    assert {path.name for path in project.folder.iterdir()} <= {
        "kernels.py", "test_copy.py", "conftest.py", "harness", "__pycache__"
    }  # fmt: skip
    assert (project.cache / "unfix").is_dir()


def test_without_the_option_the_wheel_is_no_part_of_a_run(project: ForeignProject) -> None:
    done = project.test(KERNELS, "--collect-only", "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ours: unfix unfix.sanitizer unfix.sanitizer.pytest_options\n" in done.stdout
    assert "kernels under check" not in done.stdout


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("--sanitize=leaks", "--sanitize: the checks are bounds, overflow, races, uninitialized"),
        (
            "--sanitize=test_copy.py",
            "test_copy.py is no check: write --sanitize=all, or test_copy.py",
        ),
        ("--sanitize-device=cpu", "--sanitize-device needs --sanitize"),
    ],
)
def test_a_call_that_checks_nothing_is_refused(
    project: ForeignProject, option: str, reason: str
) -> None:
    done = project.test(KERNELS, option)
    assert (done.returncode, done.stdout) == (4, "")
    assert reason in done.stderr


def test_an_assertion_of_a_suite_in_the_wheel_is_evidence() -> None:
    """A wheel carries the suites below its package, whose own assertions are none."""
    for file, outcome in (
        (paths.CARRIED_FOLDER / "suites" / "test_a.py", Outcome.FAILED),
        (paths.HARNESS_FOLDER / "core" / "a.py", Outcome.ERROR),
    ):
        with pytest.raises(AssertionError) as caught:
            exec(compile("raise AssertionError", str(file), "exec"))
        assert run_item._classify_error(caught.value) is outcome
