"""A test suite has SGLang's CUDA C++ kernels under check, each launch in the test that made it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from harness.core import paths
from harness.releases import cuda_toolkit, managed_releases

RELEASE = "0.5.23"
pytestmark = [
    pytest.mark.skipif("UNFIX_NIGHTLY" not in os.environ, reason="a nightly test"),
    pytest.mark.skipif(cuda_toolkit.find_toolkit() is None, reason="no CUDA toolkit is installed"),
    pytest.mark.skipif(
        not managed_releases.get_release(RELEASE).is_installed,
        reason=f"SGLang {RELEASE} is not installed",
    ),
]
SUITE = """
import torch
from sglang.kernels.ops.kvcache.kvcache import store_cache

def store(slot):
    row = torch.ones(1, 128, dtype=torch.bfloat16, device="cuda")
    keys, values = torch.zeros(2, 16, 128, dtype=torch.bfloat16, device="cuda")
    store_cache(row, row, keys, values, torch.tensor([slot], device="cuda"))

def test_inside():
    store(15)

def test_outside():
    store(40)
"""


def test_a_launch_past_its_tensor_fails_its_test_alone(tmp_path: Path) -> None:
    (tmp_path / "test_stores.py").write_text(SUITE)
    words = ["exec", "--check", "--device", "virtual", "--cuda-kernels", "--release", RELEASE]
    command = ["python", "-m", "pytest", "-v", "-p", "no:cacheprovider", "test_stores.py"]
    done = subprocess.run(
        [str(paths.project_folder() / "unfix"), *words, "--", *command],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 1, done.stdout[-3000:]
    assert "test_inside PASSED" in done.stdout
    assert "test_outside VIOLATION" in done.stdout
    assert "checked 2 launches of 1 kernel in 2 tests" in done.stdout
    assert "kernels of Triton's and CUDA's and 100.0% of their 2 launches" in done.stdout
