"""The toolkit that builds CUDA kernels with checks, around a toolkit that only looks like one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.cli import kernel_checks
from harness.core import machine, paths
from harness.core.errors import NotReadyError, UnfixError
from harness.patching.child_environment import ChildEnvironment
from harness.sanitizer.cuda import checked_toolchain
from harness.sanitizer.cuda.checked_toolchain import CheckedToolkit
from harness.sanitizer.ptx.instrumented_kernel import read_kernels

PTX = paths.HARNESS_FOLDER.parent / "tests" / "sanitizer" / "ptx" / "faults.ptx"
# A libcudart that prints how a kernel is launched: 'NAME: first and last argument'.
_LIBRARY = r"""
#include <stddef.h>
#include <stdio.h>
typedef struct { unsigned x, y, z; } Dim3;
void **__cudaRegisterFatBinary(void *wrapper) { return wrapper; }
void __cudaRegisterFunction(void **module, const char *host, char *device, const char *name,
                            int limit, void *tid, void *bid, void *block, void *grid, int *warp) {}
static int (*is_handled)(void);
void set_question(int (*question)(void)) { is_handled = question; }
int cudaLaunchKernel(const void *function, Dim3 grid, Dim3 block, void **arguments, size_t shared,
                     void *stream) {
  printf("%d %d in %u blocks\n", *(int *)arguments[0], *(int *)arguments[1], grid.x);
  if (is_handled) printf("the driver leaves it alone: %d\n", is_handled());
  fflush(stdout);
  return 0;
}
typedef struct { int id; char padding[4]; char value[64]; } Attribute;
typedef struct { Dim3 grid, block; size_t shared; void *stream; Attribute *attributes;
                 unsigned count; } Configuration;
int cudaLaunchKernelExC(const Configuration *given, const void *function, void **arguments) {
  printf("attributes:");
  for (unsigned i = 0; i < given->count; ++i) printf(" %d", given->attributes[i].id);
  printf("\n");
  fflush(stdout);
  return 0;
}
int cudaGetDevice(int *device) { *device = 3; return 0; }
"""
_MODULE = r"""
#include <stddef.h>
typedef struct { unsigned x, y, z; } Dim3;
void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *,
                            void *, void *, int *);
int cudaLaunchKernel(const void *, Dim3, Dim3, void **, size_t, void *);
int cudaLaunchKernelExC(const void *, const void *, void **);
int cudaGetDevice(int *);
static char kernel;
static struct { int magic, version; const void *fatbin; } wrapper = {1, 1, "image"};
int run(int value) {
  void **module = __cudaRegisterFatBinary(&wrapper);
  __cudaRegisterFunction(module, &kernel, NULL, "fill", -1, 0, 0, 0, 0, 0);
  void *arguments[] = {&value, &value};
  int device, error = cudaLaunchKernel(&kernel, (Dim3){7, 1, 1}, (Dim3){1, 1, 1}, arguments, 0, 0);
  struct { int id; char padding[4]; char value[64]; } attributes[] = {{4}, {6}, {8}};
  struct { Dim3 grid, block; size_t shared; void *stream, *attributes; unsigned count; }
    configuration = {{7, 1, 1}, {1, 1, 1}, 0, (void *)16, attributes, 3};
  if (!error) cudaLaunchKernelExC(&configuration, &kernel, arguments);
  cudaGetDevice(&device);
  return error ? error : device;
}
"""
_PROCESS = """
import ctypes, sys
cudart = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
module = ctypes.CDLL(sys.argv[3])
print(module.run(5), flush=True)
kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p,
                        ctypes.POINTER(ctypes.POINTER(ctypes.c_int)),
                        ctypes.POINTER(ctypes.c_uint), ctypes.c_void_p, ctypes.c_void_p)
@kind
def fill(name, fatbin, arguments, sides, checks, stream):
    ctypes.c_int.from_address(checks).value = 10 * arguments[0][0]
    print(name.decode(), fatbin.decode(), sides[0], stream, flush=True)
    return 1
launches = ctypes.CDLL(sys.argv[2])
launches.unfix_set_launch_hook(fill, int(sys.argv[4]))
cudart.set_question(ctypes.cast(launches.unfix_is_handled, ctypes.c_void_p))
print(module.run(6), launches.unfix_is_handled(), flush=True)
"""


@pytest.fixture(scope="module")
def shared_toolkit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CheckedToolkit]:
    """A toolkit that is made once for all tests, in a home that they share."""
    if not shutil.which("cc") or not shutil.which("ar"):
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("toolkit")
    home = folder / "cuda"
    for name in ("bin", "lib64", "include"):
        (home / name).mkdir(parents=True)
    (home / "bin" / "nvcc").write_text("")
    assembler = home / "bin" / "ptxas"
    assembler.write_text('#!/bin/sh\necho "$@" > used\nfor one; do case $one in *.ptx)'
                         ' cp "$one" assembled.ptx;; esac; done\n')  # fmt: skip
    assembler.chmod(0o755)
    compile_source(_LIBRARY, home / "lib64" / "libcudart.so.13", "-Wl,-soname,libcudart.so.13")
    (home / "lib64" / "libcudart.so").symlink_to("libcudart.so.13")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNFIX_HOME", str(folder / "home"))
        yield checked_toolchain.make_checked_toolkit(home, ("bounds", "overflow"))


@pytest.fixture
def toolkit(shared_toolkit: CheckedToolkit) -> Iterator[CheckedToolkit]:
    """The toolkit, with the assembler that it was made for and no kernels before and after."""
    assembler = find_assembler(shared_toolkit)
    text, changed = assembler.read_text(), assembler.stat().st_mtime_ns
    yield shared_toolkit
    assembler.write_text(text)
    os.utime(assembler, ns=(changed, changed))
    for file in shared_toolkit.kernels.iterdir():
        file.unlink()


def find_assembler(toolkit: CheckedToolkit) -> Path:
    """Find the real assembler, which the toolkit's own one calls."""
    return (toolkit.home / "include").resolve().parent / "bin" / "ptxas"


def compile_source(source: str, target: Path, *flags: str) -> None:
    words = ["cc", "-w", "-shared", "-fPIC", "-x", "c", "-", "-o", str(target), *flags]
    subprocess.run(words, input=source, text=True, check=True)


def test_the_assembler_gets_the_kernels_with_checks(
    toolkit: CheckedToolkit, tmp_path: Path
) -> None:
    words = [str(toolkit.home / "bin" / "ptxas"), "-arch=sm_90a", str(PTX), "-o", "out.cubin"]
    subprocess.run(words, check=True, cwd=tmp_path)
    text = (tmp_path / "assembled.ptx").read_text()
    assert "unfix_checks" in text
    [file] = toolkit.kernels.glob("*.json")
    assert f"unfix_checked_{file.stem}" in text
    kernel = read_kernels(file)["write_row"]
    assert kernel.refusal == ""
    assert [site.label for site in kernel.sites] == ["read", "read", "write"]
    used = (tmp_path / "used").read_text().split()
    assert (used[0], used[2:]) == ("-arch=sm_90a", ["-o", "out.cubin", "-v"])


@pytest.mark.parametrize(
    ("plain", "checked", "limit"),
    [(40, 60, ""), (40, 72, ".maxnreg 64"), (100, 120, ""), (100, 130, ".maxnreg 128")],
)
def test_checks_leave_a_kernel_the_registers_of_its_blocks(
    toolkit: CheckedToolkit, tmp_path: Path, plain: int, checked: int, limit: str
) -> None:
    real = find_assembler(toolkit)
    lines = "echo \"ptxas info    : Compiling entry function 'write_row' for 'sm_90a'\" >&2\n"
    lines += f"grep -q unfix_checks assembled.ptx && n={checked} || n={plain}\n"
    lines += 'echo "ptxas info    : Used $n registers, used 0 barriers" >&2\n'
    real.write_text(
        real.read_text() + lines + "for one; do case $one in *.cubin) touch $one;; esac; done\n"
    )
    words = [str(toolkit.home / "bin" / "ptxas"), str(PTX), "-o", "out.cubin"]
    done = subprocess.run(words, check=True, cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr == ""
    text = (tmp_path / "assembled.ptx").read_text()
    if checked > 64:
        text = next(toolkit.kernels.glob("*.ptx")).read_text()
    head = text[text.index(".entry write_row") :]
    head = head[: head.index("{")]
    assert (limit in head) if limit else ("maxnreg" not in head)
    assert "maxnreg" not in text.replace(head, "")


def test_what_the_assembler_refuses_with_checks_is_built_without(
    toolkit: CheckedToolkit, tmp_path: Path
) -> None:
    real = find_assembler(toolkit)
    real.write_text(real.read_text() + "! grep -q unfix_checks assembled.ptx\n")
    words = [str(toolkit.home / "bin" / "ptxas"), str(PTX)]
    done = subprocess.run(words, check=True, cwd=tmp_path, capture_output=True, text=True)
    assert "it is built without" in done.stderr
    assert (tmp_path / "assembled.ptx").read_text() == PTX.read_text()
    assert not list(toolkit.kernels.glob("*.json"))


def test_a_module_that_is_linked_with_it_passes_one_more_argument(
    toolkit: CheckedToolkit, tmp_path: Path
) -> None:
    module = tmp_path / "module.so"
    source = tmp_path / "module.c"
    source.write_text(_MODULE)
    words = ["cc", "-shared", "-fPIC", str(source), "-o", str(module)]
    subprocess.run([*words, f"-L{toolkit.home}/lib64", "-lcudart"], check=True)
    real = (toolkit.home / "lib64" / "libcudart.so.13").resolve()
    for waits, attributes in (("0", "4 6 8"), ("1", "4 8")):  # 6 is dependent launch
        words = [sys.executable, "-c", _PROCESS, str(real), str(toolkit.library), str(module)]
        done = subprocess.run([*words, waits], check=True, capture_output=True, text=True)
        assert done.stdout.splitlines() == [
            "801",
            "fill image 7 None",
            "6 60 in 7 blocks",
            "the driver leaves it alone: 1",  # it has its checks already
            "fill image 7 16",
            f"attributes: {attributes}",
            "3 0",
        ]
        assert "fill was built with checks, and this process has none" in done.stderr


def test_a_launch_with_too_many_attributes_is_refused_by_name(
    toolkit: CheckedToolkit, tmp_path: Path
) -> None:
    module, source = tmp_path / "module.so", tmp_path / "module.c"
    text = _MODULE.replace("attributes[] = {{4}, {6}, {8}}", "attributes[33] = {{4}}")
    source.write_text(text.replace(", attributes, 3}", ", attributes, 33}"))
    words = ["cc", "-shared", "-fPIC", str(source), "-o", str(module)]
    subprocess.run([*words, f"-L{toolkit.home}/lib64", "-lcudart"], check=True)
    real = (toolkit.home / "lib64" / "libcudart.so.13").resolve()
    words = [sys.executable, "-c", _PROCESS, str(real), str(toolkit.library), str(module), "1"]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    assert "attributes:" not in done.stdout
    assert "fill is not launched: it has 33 launch attributes" in done.stderr
    assert "a launch may have 32" in done.stderr


def test_builds_with_checks_have_caches_of_their_own(toolkit: CheckedToolkit) -> None:
    environment = {"NVCC_APPEND_FLAGS": "-lineinfo", "PATH": "/usr/bin"}
    toolkit.set_variables(environment)
    assert environment["CUDA_HOME"] == str(toolkit.home)
    assert environment["PATH"] == f"{toolkit.home}/bin:/usr/bin"
    assert environment["NVCC_APPEND_FLAGS"] == "-lineinfo --no-compress"
    assert environment["SGLANG_JIT_CACHE_DIR"].startswith(f"{toolkit.folder}/")
    toolkit.set_variables(environment)  # as a child process does
    toolkit.restore_variables(environment)
    flags = "-lineinfo --no-compress"
    plain = {"PATH": "/usr/bin", "NVCC_APPEND_FLAGS": flags}
    assert environment == {**plain, "UNFIX_CHECKED_CUDA": str(toolkit.folder)}


def test_a_call_requests_them(
    toolkit: CheckedToolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "describe_gpus", lambda: "a GPU")
    monkeypatch.setenv("CUDA_HOME", str((toolkit.home / "include").resolve().parent))

    def request(words: str, device: str | None = None) -> ChildEnvironment:
        environment = ChildEnvironment()
        kernel_checks.configure_environment(environment, words, device, tmp_path)
        return environment

    assert request("cuda")["UNFIX_CHECKED_CUDA"] == str(toolkit.folder)
    assert request("cuda")["CUDA_HOME"] == os.environ["CUDA_HOME"]  # until a process starts
    assert request("cuda")["UNFIX_CHECK"] == "bounds,overflow"
    assert "UNFIX_CHECKED_CUDA" not in request("bounds")
    assert request("bounds,cuda")["UNFIX_CHECKED_CUDA"] != str(toolkit.folder)
    with pytest.raises(UnfixError, match="--cuda-kernels"):
        request("cuda", "virtual")
    assert request("races,uninitialized,cuda")["UNFIX_CHECK"] == "races,uninitialized"
    with pytest.raises(UnfixError, match="needs what to look for"):
        request("graphs,cuda")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nothing"))
    with pytest.raises(NotReadyError, match="has no bin/ptxas"):
        request("cuda")
