"""Kernels that NVRTC compiles in a process under check, on a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.core import paths
from harness.sanitizer.cuda import checked_toolchain

pytestmark = pytest.mark.needs_cuda
_CHECKOUT = paths.HARNESS_FOLDER.parent
_PROGRAM = """
import torch

SOURCE = '''
extern "C" __global__ void scale(float* out, const float* source, int count) {
  int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index < count) out[index] = source[index] * 2.0f;
}
'''
kernel = torch.cuda._compile_kernel(SOURCE, "scale")
SQUARE = "template <typename T> T square(T x) { return x * x; }"
square = torch.cuda.jiterator._create_jit_fn(SQUARE)
source = torch.arange(1000, dtype=torch.float32, device="cuda")
out = torch.zeros_like(source)
kernel((4, 1, 1), (256, 1, 1), [out, source, 1000 + OVER])
torch.cuda.synchronize()
assert out.equal(source * 2)
assert square(source).equal(source * source)
"""


def check_program(program: str, folder: Path) -> dict[str, Any]:
    if checked_toolchain.find_cuda_home(os.environ) is None:
        pytest.skip("no CUDA toolkit is installed")
    file, record = folder / "program.py", folder / "record.json"
    file.write_text(program)
    words = [sys.executable, "-m", "harness", "exec", "--check", "bounds,overflow,cuda"]
    words += ["--record", str(record), "--", sys.executable, str(file)]
    subprocess.run(words, cwd=_CHECKOUT, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(record.read_text())["check"]
    return found


@pytest.mark.parametrize("over", [0, 1])
def test_a_kernel_that_torch_has_nvrtc_compile_is_checked(tmp_path: Path, over: int) -> None:
    found = check_program(_PROGRAM.replace("OVER", str(over)), tmp_path)
    assert found["checked_launches"] == found["launches"] >= 2
    headlines = [report["headline"] for report in found["reports"]]
    # The write of the same line is one of the further reports.
    words = (
        "scale read 4 bytes past the end of argument 1 (its index 1000, and it is float32 [1000])"
    )
    assert headlines == over * [words]
