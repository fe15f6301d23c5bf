"""torch's own CUDA extensions on the virtual GPU: built by torch's code, launched under check."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.core import paths
from harness.core.errors import NotReadyError
from harness.core.preparation import measure_preparations
from harness.releases import cuda_toolkit
from harness.sanitizer import hooks
from harness.sanitizer.check.virtual_check import SESSION_EXTENSIONS
from harness.sanitizer.cuda.host_calls import CALLS
from harness.sanitizer.cuda.session import CheckedRunner
from harness.sanitizer.device.record import RECORD
from harness.sanitizer.hooks import HOOKS
from harness.sanitizer.plugins import load_plugin
from harness.sanitizer.plugins.for_torch import built_extensions, extensions, open_sessions

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
        super().__init__(calls=[], _jit_compile=self._compile, CUDAExtension=SimpleNamespace)
        self.BuildExtension = type("BuildExtension", (), {"build_extensions": self.calls.append})

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
    assert [one.__name__ for one in SESSION_EXTENSIONS].count("check_launches") == 1
    plain = fake._jit_compile("host", ["host.cpp"], None, None, None, "builds", None, True)
    assert not isinstance(plain, extensions.ExtensionModule)


def test_what_a_setup_py_builds_is_built_for_the_virtual_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, prepared = FakeCppExtension(), []
    monkeypatch.setattr(extensions, "_prepare_process", prepared.append)
    extensions.hook_builds(fake)
    libraries = ["c10", "torch", "cudart", "c10_cuda", "torch_cuda"]
    declared = fake.CUDAExtension(
        name="added._C", sources=["added.cu", "bind.cpp"], include_dirs=["own"],
        libraries=libraries, extra_compile_args=["-O3"],
    )  # fmt: skip
    assert prepared == [fake], "CUDAExtension asks for CUDA_HOME"
    host = SimpleNamespace(name="host", sources=["host.cpp"])
    command = fake.BuildExtension()
    command.extensions, command.build_temp, command.build_lib = [declared, host], tmp_path, "lib"
    command.build_extensions()
    assert fake.calls == [command]
    assert declared.libraries == ["c10", "torch", "cudart"]
    assert declared.extra_compile_args["cxx"] == ["-O3", "-O0"]
    assert declared.extra_compile_args["nvcc"] == ["-O3", "-lineinfo", "--no-compress"]
    assert (Path(declared.include_dirs[0]) / "ATen/cuda/CUDAContext.h").is_file()
    *own, runtime = declared.sources
    assert own == ["added.cu", "bind.cpp"]
    assert host.sources == ["host.cpp"]
    text = Path(runtime).read_text()
    assert "getCurrentCUDAStream" in text
    assert rf"{extensions.BUILD_MARK}{os.path.abspath('added.cu')}\n" in text


MODULE = """
#include <Python.h>
const char cuda_code[] = "__cudaRegisterFatBinary";
const char mark[] = "{mark}";
static PyObject *call(PyObject *self, PyObject *function) {{
  return PyObject_CallNoArgs(function);
}}
static PyMethodDef methods[] = {{{{"call", call, METH_O, ""}}, {{NULL}}}};
static struct PyModuleDef module = {{PyModuleDef_HEAD_INIT, "{name}", "", -1, methods}};
PyMODINIT_FUNC PyInit_{name}(void) {{ return PyModule_Create(&module); }}
"""


def build_module(folder: Path, name: str, mark: str, *libraries: str) -> None:
    (source := folder / f"{name}.c").write_text(MODULE.format(name=name, mark=mark))
    words = ["cc", "-shared", "-fPIC", f"-I{sysconfig.get_path('include')}", str(source)]
    subprocess.run([*words, "-o", str(folder / f"{name}.so"), *libraries], check=True)


@pytest.fixture
def imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Hooked imports from `tmp_path`; filled with what was prepared."""
    prepared: list[str] = []
    monkeypatch.setattr(extensions, "prepare_launches", lambda: prepared.append("launches"))
    monkeypatch.setattr(extensions.cudart, "take_last_error", lambda: 0)
    monkeypatch.syspath_prepend(str(tmp_path))
    built_extensions.hook_imports()
    return prepared


def test_functions_of_an_extension_that_is_imported_are_host_calls(
    tmp_path: Path, imports: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (source := tmp_path / "added.cu").write_text("void call(Function work) {}")
    build_module(tmp_path, "built_here", f"{extensions.BUILD_MARK}{source}")
    module: Any = importlib.import_module("built_here")
    assert imports == ["launches"]
    assert module.call(lambda: CALLS._stack[-1].name) == "built_here.call"
    assert not capsys.readouterr().err


def test_an_extension_that_was_built_for_a_gpu_is_named_as_unchecked(
    tmp_path: Path, imports: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    build_module(tmp_path, "built_elsewhere", "")
    module: Any = importlib.import_module("built_elsewhere")
    words = f"built_elsewhere is not checked: {tmp_path / 'built_elsewhere.so'} was built for a GPU"
    assert words in capsys.readouterr().err
    assert words in str(list(RECORD.refusals))
    assert module.call(lambda: CALLS._stack) == []
    (library := tmp_path / "libtorch_cuda_.so").write_bytes(
        (tmp_path / "built_elsewhere.so").read_bytes()
    )
    build_module(tmp_path, "unloadable", "", f"-L{tmp_path}", "-Wl,--no-as-needed", "-ltorch_cuda_")
    library.unlink()
    with pytest.raises(ImportError, match=r"libtorch_cuda_.*; unloadable is not checked: .*exec"):
        importlib.import_module("unloadable")
    assert imports == []


def test_keywords_are_names_of_a_host_call() -> None:
    tensor, given = torch.zeros(2), {}

    def function(*args: Any, **options: Any) -> None:
        given.update(args=args, options=options, tensors=CALLS._stack[-1].tensors)

    extensions.make_host_call("added.add_one", ("numbers",), function)(tensor, scale=2, out=tensor)
    assert given["args"] == (tensor,)
    assert given["options"] == {"scale": 2, "out": tensor}
    assert list(given["tensors"]) == ["numbers", "out"]


def test_the_machines_toolkit_is_found_behind_a_script_that_calls_nvcc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, script = tmp_path / "cuda", tmp_path / "bin" / "nvcc"
    for file in (usual / "lib64" / "libcudart.so.13", script):
        file.parent.mkdir(parents=True)
        file.touch(0o755)
    monkeypatch.setenv("PATH", str(script.parent))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(hooks, "_USUAL_TOOLKIT", usual)
    assert hooks._find_own_toolkit().home == usual
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(NotReadyError, match=f"and {tmp_path} is none"):
        hooks._find_own_toolkit()


def test_launches_of_an_extension_that_a_test_loads_are_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(HOOKS, "sees_cuda_launches", False)
    before = CALLS.runner
    with open_sessions.check_launches(SimpleNamespace(memory=None, launches=None, options=None)):
        assert CALLS.runner is before
        open_sessions.check_open_sessions()
        assert isinstance(CALLS.runner, CheckedRunner)
    assert CALLS.runner is before


def test_a_process_whose_first_import_of_torch_is_the_checkers_runs_cuda_kernels() -> None:
    folders = (paths.HARNESS_FOLDER / "startup", paths.project_folder())
    environment = {**os.environ, "UNFIX_DEVICE": "virtual", "UNFIX_CUDA_KERNELS": "run"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, folders))
    program = "import harness.sanitizer.watch.pytest_plugin"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


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
