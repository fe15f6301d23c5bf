"""A kernel that nvcc builds in a process under check, and that is launched through the driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.core import paths
from harness.sanitizer.cuda import checked_toolchain

pytestmark = pytest.mark.needs_cuda
_CHECKOUT = paths.HARNESS_FOLDER.parent
_SOURCE = """
extern "C" __global__ void scale(float* out, const float* source, int count) {
  int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index < count) out[index] = source[index] * 2.0f;
}
"""
_PROGRAM = """
import ctypes, os, subprocess, sys
import torch

folder, over = sys.argv[1], int(sys.argv[2])
nvcc = os.environ["CUDA_HOME"] + "/bin/nvcc"
major, minor = torch.cuda.get_device_capability()
words = [nvcc, "-cubin", f"-arch=sm_{major}{minor}", f"{folder}/scale.cu"]
subprocess.run([*words, "-o", f"{folder}/scale.cubin"], check=True)
source = torch.arange(1024, dtype=torch.float32, device="cuda")
out = torch.zeros_like(source)
driver = ctypes.CDLL("libcuda.so.1")
module, function = ctypes.c_void_p(), ctypes.c_void_p()
assert not driver.cuModuleLoad(ctypes.byref(module), f"{folder}/scale.cubin".encode())
assert not driver.cuModuleGetFunction(ctypes.byref(function), module, b"scale")
values = (ctypes.c_uint64(out.data_ptr()), ctypes.c_uint64(source.data_ptr()),
          ctypes.c_int(1024 + over))
arguments = (ctypes.c_void_p * 3)(*map(ctypes.addressof, values))
stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
assert not driver.cuLaunchKernel(function, 5, 1, 1, 256, 1, 1, 0, stream, arguments, None)
torch.cuda.synchronize()
assert out.equal(source * 2)
"""


@pytest.mark.parametrize("over", [0, 1])
def test_a_kernel_that_is_launched_through_the_driver_is_checked(tmp_path: Path, over: int) -> None:
    if checked_toolchain.find_cuda_home(os.environ) is None:
        pytest.skip("no CUDA toolkit is installed")
    program, record = tmp_path / "program.py", tmp_path / "record.json"
    program.write_text(_PROGRAM)
    (tmp_path / "scale.cu").write_text(_SOURCE)
    words = [sys.executable, "-m", "harness", "exec", "--check", "bounds,overflow,cuda"]
    words += ["--record", str(record), "--", sys.executable, str(program), str(tmp_path), str(over)]
    subprocess.run(words, cwd=_CHECKOUT, capture_output=True, text=True)
    found = json.loads(record.read_text())["check"]
    assert found["checked_launches"] == found["launches"] >= 1
    headlines = [report["headline"] for report in found["reports"]]
    # The write of the same line is one of the further reports.
    assert len(headlines) == over
    assert all(line.startswith("scale read 4 bytes past the end of ") for line in headlines)
