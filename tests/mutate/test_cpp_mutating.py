"""`unfix mutate` over a real CUDA source of SGLang: built, launched and checked without a GPU."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import forked
import pytest

from harness.core import paths
from harness.releases import cuda_toolkit, managed_releases

SOURCE = "sglang/kernels/jit/csrc/elementwise/clamp_position.cuh:clamp_position_kernel"
GUARD = """
import torch
from fixtures import cuda_kernels
from harness import checking

def test_no_position_is_negative():
    clamp = cuda_kernels.require_kernel("attention.clamp_position", "clamp_position_cuda")
    with checking.checked_cuda() as check:
        lengths = torch.tensor([0, 1, 5], device=check.device)
        assert clamp(lengths).tolist() == [0, 0, 4]

def test_of_something_else():
    assert checking
"""


@pytest.mark.skipif(
    cuda_toolkit.find_toolkit() is None,
    reason="no CUDA toolkit is installed: ./unfix releases add cuda-toolkit",
)
def test_faults_in_a_kernel_are_killed_by_the_guard_that_launches_it(tmp_path: Path) -> None:
    if not managed_releases.get_release("0.5.23").is_installed:
        pytest.skip("0.5.23 is not installed")
    guard = tmp_path / "test_clamped.py"
    guard.write_text(GUARD)
    words = ["mutate", SOURCE, "--release", "0.5.23", "--suite", str(guard), "-j", "1", "--json"]
    words += ["--operators", "drop-clamp,widen-mask,narrow-int64"]
    command = [sys.executable, "-m", "harness", *words, "--examples", "1"]
    environment = {**os.environ, "PYTHONPATH": str(paths.project_folder())}
    done = forked.run_unfix(command, paths.project_folder(), environment, timeout=900)
    assert done.stdout, done.stderr
    run = json.loads(done.stdout)
    fates = {
        (fate["fault"]["operator"], fate["fault"]["before"]): (fate["fate"], fate["by"])
        for fate in run["fates"]
    }
    killed = ("killed", "test_clamped.py::test_no_position_is_negative")
    assert fates[("drop-clamp", "val < 0 ? 0 : val")] == killed
    assert fates[("widen-mask", "idx < n")] == killed
    # The product is one of 32 bits before it is widened, so nvcc makes the same code.
    assert fates[("narrow-int64", "size_t")][0] == "unreached"
    out_of_bounds = next(f for f in run["fates"] if f["fault"]["operator"] == "widen-mask")
    assert "read 8 bytes past the end of seq_lens" in out_of_bounds["headline"]
