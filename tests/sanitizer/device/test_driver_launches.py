"""The driver with its stand-in: modules that were built with checks are launched with them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.core import paths
from harness.releases import cuda_toolkit
from harness.sanitizer.cuda import checked_toolchain, driver_library
from harness.sanitizer.gpu import DEFAULT_CHECKS

_HERE = Path(__file__).parent
_ASSEMBLER = """#!/bin/sh
for one; do case $one in *.ptx) text=$one;; esac; done
while [ $# -gt 1 ]; do [ "$1" = -o ] && cp "$text" "$2"; shift; done
"""


def build_library(target: Path, source: str, *flags: str) -> Path:
    if shutil.which("cc") is None or shutil.which("ar") is None:
        pytest.skip("there is no C compiler")
    target.parent.mkdir(parents=True, exist_ok=True)
    words = ["cc", "-w", "-shared", "-fPIC", source, "-o", str(target), *flags]
    subprocess.run([*words, f"-Wl,-soname,{target.name},-Bsymbolic"], check=True)
    return target


def make_fake_toolkit(folder: Path) -> Path:
    """Make a toolkit whose machine code is the text."""
    home = folder / "cuda"
    for name in ("bin", "include"):
        (home / name).mkdir(parents=True)
    assembler = home / "bin" / "ptxas"
    assembler.write_text(_ASSEMBLER)
    assembler.chmod(0o755)
    build_library(home / "lib64" / "libcudart.so.13", os.devnull, "-xc")
    return home


def find_real_toolkit() -> Path:
    plain = cuda_toolkit.find_toolkit()
    if plain is None:
        pytest.skip("no CUDA toolkit is installed")
    return plain.home


@pytest.fixture(scope="module", params=["the real ptxas", "a ptxas that only copies"])
def answers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("driver")
    is_real = request.param == "the real ptxas"
    home = find_real_toolkit() if is_real else make_fake_toolkit(folder)
    driver = build_library(folder / "driver" / "libcuda.so.1", str(_HERE / "fake_driver.c"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver_library, "find_driver", lambda: driver)
        patch.setattr(paths, "cuda_builds_folder", lambda: folder)
        toolkit = checked_toolchain.make_checked_toolkit(home, DEFAULT_CHECKS)
    done = run_program(toolkit.folder, driver)
    assert done.returncode == 0, done.stderr[-3000:]
    output: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**output, "stderr": done.stderr, "folder": toolkit.folder, "driver": driver}


def run_program(toolkit: Path, driver: Path) -> subprocess.CompletedProcess[str]:
    standins = paths.HARNESS_FOLDER / "releases" / "standins"
    path = os.pathsep.join(map(str, (paths.HARNESS_FOLDER.parent, standins)))
    words = [sys.executable, str(_HERE / "driver_program.py"), str(toolkit), str(driver)]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(words, env=environment, capture_output=True, text=True)


_VARIABLES = ("CUDA_HOME", "DG_JIT_CACHE_DIR")


def start_process(
    folder: Path, program: str = "", *options: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Start a process as `unfix exec --check bounds,cuda` does; it prints its variables."""
    program += f"\nimport os; print([os.environ.get(name) for name in {_VARIABLES}])"
    environment = {name: value for name, value in os.environ.items() if name not in _VARIABLES}
    environment |= {"UNFIX_CHECK": "bounds", "UNFIX_CHECKED_CUDA": str(folder)}
    environment |= {"PYTHONPATH": str(paths.HARNESS_FOLDER / "startup"), **variables}
    words = [sys.executable, *options, "-c", program]
    return subprocess.run(words, env=environment, capture_output=True, text=True)


def test_a_process_builds_with_checks_once_it_has_the_drivers_stand_in(
    answers: dict[str, Any],
) -> None:
    folder = answers["folder"]
    done = start_process(folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{[f'{folder}/cuda', f'{folder}/builds/deep-gemm']}\n"
    alone = start_process(folder, "", "-I")  # it loads nothing of ours
    assert alone.stdout == "[None, None]\n"


def test_a_process_that_has_loaded_the_driver_before_ends(answers: dict[str, Any]) -> None:
    done = start_process(answers["folder"], LD_PRELOAD=str(answers["driver"]))
    assert (done.returncode, done.stdout) == (3, "")
    assert "this process had loaded libcuda.so.1 before its checks began" in done.stderr


@pytest.mark.parametrize("lost", ["folder", "driver"])
def test_a_process_that_cannot_load_the_drivers_stand_in_ends(
    answers: dict[str, Any], lost: str
) -> None:
    driver: Path = answers["driver"]
    standin = answers["folder"] / "driver" / driver.name
    moved = standin if lost == "folder" else driver
    aside = moved.rename(moved.with_name("aside"))
    try:
        done = start_process(answers["folder"], LD_LIBRARY_PATH=str(driver.parent))
    finally:
        aside.rename(moved)
    assert (done.returncode, done.stdout) == (3, "")
    assert driver.name in done.stderr


def test_a_machine_without_a_driver_builds_with_checks(tmp_path: Path) -> None:
    if driver_library.has_driver():
        pytest.skip("this machine has a driver")
    done = start_process(tmp_path)
    assert done.stdout.startswith(f"['{tmp_path}/cuda'"), done.stderr


_WITHOUT_TORCH = """
import importlib.util, os
from pathlib import Path
from harness.sanitizer.cuda import checked_modules
from harness.sanitizer.cuda.checked_toolchain import CheckedToolkit
importlib.util.find_spec = lambda name: None if name == "torch" else name
toolkit = CheckedToolkit(Path("/none"))
os.environ["CUDA_HOME"] = "/usr/local/cuda"
toolkit.set_variables(os.environ)
checked_modules.build_with_checks(toolkit, print)
print(os.environ["PATH"])
"""


def test_a_process_without_torch_builds_without_checks() -> None:
    root = str(paths.HARNESS_FOLDER.parent)
    done = start_process(Path("/none"), _WITHOUT_TORCH, PYTHONPATH=root)
    assert done.stdout.splitlines()[1:] == ["['/usr/local/cuda', None]"], done.stderr
    assert "/none" not in done.stdout


_LAUNCHES = ["machine code", "a buffer", "PTX", "PTX, its handle", "a file", "a library's file"]
_LAUNCHES += ["a module's list", "a configuration"]


@pytest.mark.parametrize("launch", _LAUNCHES)
def test_a_kernel_is_checked_however_it_is_launched(answers: dict[str, Any], launch: str) -> None:
    read, wrote = answers[launch]
    index = "(its index 40, and it is float32 [40])"
    assert read.startswith(f"scale<float> read 4 bytes past the end of source {index}")
    assert wrote.startswith(f"scale<float> wrote 4 bytes past the end of out {index}")
    assert "scale.cu:4  if (index <= count) out[index] = in[index] * T(2);" in wrote
    assert "thread (40, 0, 0)" in wrote


def test_a_launch_is_counted_once_and_checks_start_with_the_first_module(
    answers: dict[str, Any],
) -> None:
    assert answers["summaries"] == [["scale<float>", len(_LAUNCHES)]]
    assert answers["starts"] == 1


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("real", 77),  # what the stand-in lacks is the real driver's
        ("by hand", [801] * 10),  # a node that is added by hand is refused
        ("by hand, a library's", [801] * 7),
        ("of another kind", 0),
        ("versions", True),
        ("a plain kernel", 5),  # of a checked module: it keeps its attributes
        ("a large image", [801] * 10),
        ("not unloaded", [801] * 10),
        ("used again", [0] * 10),  # a module is forgotten with what is unloaded
    ],
)
def test_the_stand_in_answers_as_the_driver_or_refuses(
    answers: dict[str, Any], case: str, expected: object
) -> None:
    assert answers[case] == expected


def test_a_node_that_is_added_by_hand_is_refused_in_words(answers: dict[str, Any]) -> None:
    assert "has checks and cannot be added to a graph by hand" in answers["stderr"]
