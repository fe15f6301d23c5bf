"""torch's own CUDA extensions on the virtual GPU: built by torch's code, launched under check."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.core import paths
from harness.core.preparation import measure_preparations
from harness.releases import cuda_toolkit
from harness.sanitizer.check.virtual_check import SESSION_EXTENSIONS
from harness.sanitizer.cuda.host_calls import CALLS
from harness.sanitizer.plugins import load_plugin
from harness.sanitizer.plugins.for_torch import extensions

KERNEL = """
__global__ void add_kernel(const float* x, float* out, int count) {
  int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at <= count) out[at] = x[at] + 1;
}
#include <ATen/cuda/CUDAContext.h>
torch::Tensor add_one(torch::Tensor numbers) {
  TORCH_CHECK(numbers.is_cuda(), "numbers must be on a GPU");
  auto out = torch::zeros_like(numbers);
  auto stream = at::cuda::getCurrentCUDAStream();
  int count = numbers.numel();
  add_kernel<<<1, 32, 0, stream>>>(numbers.data_ptr<float>(), out.data_ptr<float>(), count);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}
TORCH_LIBRARY(added_ops, m) { m.def("add_one(Tensor items) -> Tensor"); }
TORCH_LIBRARY_IMPL(added_ops, CUDA, m) { m.impl("add_one", &add_one); }
"""
TESTS = '''
import torch
from torch.utils.cpp_extension import load_inline

KERNEL = r"""{kernel}"""

def test_numbers():
    module = load_inline(
        "added", cpp_sources="torch::Tensor add_one(torch::Tensor numbers);", cuda_sources=KERNEL,
        functions=["add_one"],
    )
    assert module.add_one(torch.arange(8.0, device="cuda")).tolist() == list(range(1, 9))

def test_operator():
    torch.ops.added_ops.add_one.default(torch.arange(8.0, device="cuda"))

def test_operator_by_keyword():
    torch.ops.added_ops.add_one(items=torch.arange(8.0, device="cuda"))
'''


class FakeCppExtension(SimpleNamespace):
    """`torch.utils.cpp_extension`, as far as a build goes through it."""

    def __init__(self) -> None:
        super().__init__(calls=[], _jit_compile=self._compile)

    def _compile(
        self,
        name: str,
        sources: list[str],
        extra_cflags: Any,
        extra_cuda_cflags: Any,
        extra_include_paths: Any,
        build_directory: str,
        with_cuda: bool | None,
        is_python_module: bool,
    ) -> Any:
        self.calls.append((sources, extra_cflags, extra_cuda_cflags, extra_include_paths))
        return SimpleNamespace(add_one=lambda numbers: CALLS._stack[-1].name)

    @staticmethod
    def _is_cuda_file(file: str) -> bool:
        return file.endswith(".cu")


def test_an_extension_is_built_for_the_virtual_card_and_its_functions_are_host_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (source := tmp_path / "added.cu").write_text(KERNEL)
    fake, clock = FakeCppExtension(), iter(range(0, 100, 7))
    monkeypatch.setattr(extensions, "_prepare_process", lambda module: None)
    monkeypatch.setattr(extensions.time, "monotonic", lambda: next(clock))
    extensions.hook_builds(fake)
    with measure_preparations() as preparations:
        built = fake._jit_compile("added", [str(source)], None, ["-O3"], None, "builds", None, True)
    [(sources, cflags, cuda_cflags, folders)] = fake.calls
    assert [Path(file).name for file in sources] == ["added.cu", "c10_cuda.cpp"]
    assert cflags == ["-O0"]
    assert {"-lineinfo", "--no-compress", "-O3"} <= {*cuda_cflags}
    assert (Path(folders[0]) / "ATen/cuda/CUDAContext.h").is_file()
    assert built.add_one(4) == "added.add_one"
    assert len(preparations) == 1
    words = r"unfix: the extension added was built in \d+ s, into builds"
    assert re.search(words, capsys.readouterr().err)
    for _ in range(2):
        load_plugin("torch").build_cuda_kernels()
    assert [one.__name__ for one in SESSION_EXTENSIONS].count("_check_launches") == 1
    plain = fake._jit_compile("host", ["host.cpp"], None, None, None, "builds", None, True)
    assert not isinstance(plain, extensions.ExtensionModule)


@pytest.mark.skipif(cuda_toolkit.find_toolkit() is None, reason="no CUDA toolkit is installed")
def test_a_kernel_of_load_inline_runs_under_check(tmp_path: Path) -> None:
    toolkit = cuda_toolkit.find_toolkit()
    assert toolkit is not None
    (tmp_path / "test_added.py").write_text(TESTS.replace("{kernel}", KERNEL))
    environment = {
        **os.environ,
        "PYTHONPATH": str(paths.project_folder()),
        "TORCH_EXTENSIONS_DIR": str(paths.cuda_builds_folder() / "torch"),
    }
    toolkit.set_variables(environment)
    options = "-p harness.sanitizer.pytest_options -p no:cacheprovider -s --sanitize=all"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options.split(), str(tmp_path)],
        env=environment, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert "add_kernel read 4 bytes past the end of numbers (its index 8" in done.stdout
    assert done.stdout.count("add_kernel read 4 bytes past the end of items (its index 8") == 2
    assert "VIOLATION test_added.py::test_numbers" in done.stdout
