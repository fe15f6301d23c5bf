"""NVRTC and the driver with their stand-ins: what they compile has checks, what they launch too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.core import paths
from harness.kernels.cuda import checked_nvrtc, checked_toolchain, library_standins
from harness.kernels.gpu import DEFAULT_CHECKS
from harness.releases import cuda_toolkit

_HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    plain = cuda_toolkit.find_toolkit()
    if plain is None:
        pytest.skip("no CUDA toolkit is installed")
    if not library_standins.find_nvrtc_libraries(plain.home):
        pytest.skip("no NVRTC is installed")
    folder = tmp_path_factory.mktemp("nvrtc")
    driver = folder / "libcuda.so.1"
    words = ["cc", "-w", "-shared", "-fPIC", str(_HERE / "fake_driver.c"), "-o", str(driver)]
    subprocess.run([*words, "-Wl,-soname,libcuda.so.1,-Bsymbolic"], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library_standins, "find_driver", lambda: driver)
        patch.setattr(paths, "cuda_builds_folder", lambda: folder)
        toolkit = checked_toolchain.make_checked_toolkit(plain.home, DEFAULT_CHECKS)
    standins = paths.HARNESS_FOLDER / "releases" / "standins"
    path = os.pathsep.join(map(str, (paths.HARNESS_FOLDER.parent, standins)))
    words = [sys.executable, str(_HERE / "nvrtc_program.py"), str(toolkit.folder), str(driver)]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    given: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**given, "stderr": done.stderr}


@pytest.mark.parametrize("way", ["machine code", "a buffer", "PTX", "PTX, its handle"])
def test_a_kernel_of_nvrtc_is_checked_however_it_is_launched(
    answers: dict[str, Any], way: str
) -> None:
    read, wrote = answers[way]
    index = "(its index 40, and it is float32 [40])"
    assert read.startswith(f"scale<float> read 4 bytes past the end of source {index}")
    assert wrote.startswith(f"scale<float> wrote 4 bytes past the end of out {index}")
    assert "scale.cu:4  if (index <= count) out[index] = in[index] * T(2);" in wrote
    assert "thread (40, 0, 0)" in wrote


def test_a_launch_is_counted_once_and_checks_start_with_the_first_module(
    answers: dict[str, Any],
) -> None:
    assert answers["summaries"] == [["scale<float>", 4]]
    assert answers["starts"] >= 1


def test_a_program_for_no_card_has_text_alone(answers: dict[str, Any]) -> None:
    assert answers["no machine code"] == 0


def test_what_the_stand_in_lacks_is_the_real_drivers(answers: dict[str, Any]) -> None:
    assert answers["real"] == 77


def test_a_node_that_is_added_by_hand_is_refused_by_name(answers: dict[str, Any]) -> None:
    assert answers["by hand"] == 801
    assert "has checks and cannot be added to a graph by hand" in answers["stderr"]


def test_a_program_to_be_linked_stays_as_it_is(answers: dict[str, Any]) -> None:
    assert answers["to be linked"] is False


def test_the_assembler_gets_the_options_that_nvrtc_was_given() -> None:
    words = "--ptxas-options=-v,-O2 -maxrregcount 32 -Xptxas --verbose -G -I/x --fmad=false"
    found = checked_nvrtc.list_assembler_options(words.split())
    assert found == ["-v", "-O2", "--maxrregcount=32", "--verbose", "-g"]
