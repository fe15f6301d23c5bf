"""The CUDA toolkit is installed when it is needed, from its lock, and refused by name."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.core import paths
from harness.core.errors import NotReadyError
from harness.releases import cuda_toolkit, installer, wheelhouse

HEADERS = [f"flashinfer/data/{name}/a.h" for name in ("include", "csrc", "cutlass", "spdlog")]


@pytest.fixture
def releases_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the test a folder of releases of its own."""
    monkeypatch.setattr(paths, "releases_folder", lambda: tmp_path / ".releases")


@pytest.fixture
def pip_calls(releases_folder: None, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The arguments of each call of pip, which installs a toolkit's runtime library alone."""
    calls: list[list[str]] = []

    def run_pip(words: list[str]) -> None:
        calls.append(words)
        library = Path(words[words.index("--target") + 1]) / "nvidia/cu13/lib/libcudart.so.13"
        library.parent.mkdir(parents=True)
        library.write_bytes(b"")

    monkeypatch.setattr(installer, "run_pip", run_pip)
    monkeypatch.setattr(cuda_toolkit, "check_host_compiler", lambda: "c++")
    return calls


def test_the_first_use_installs_it_from_hashes_and_says_so(pip_calls: list[list[str]]) -> None:
    messages: list[str] = []
    toolkit = cuda_toolkit.ensure_toolkit(messages.append)
    assert [message.startswith("installing the CUDA toolkit") for message in messages] == [True]
    assert {"--require-hashes", str(cuda_toolkit.LOCK_FILE)} <= set(pip_calls[0])
    assert (toolkit.home / "lib64" / "libcudart.so").exists()


def test_a_second_use_installs_nothing(pip_calls: list[list[str]]) -> None:
    first = cuda_toolkit.ensure_toolkit(lambda message: None)
    assert cuda_toolkit.ensure_toolkit(lambda message: None) == first
    assert len(pip_calls) == 1


def test_a_changed_lock_installs_it_again(
    pip_calls: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda_toolkit.ensure_toolkit(lambda message: None)
    changed = tmp_path / "cuda-toolkit.txt"
    changed.write_text(cuda_toolkit.LOCK_FILE.read_text().replace("13.0.88", "13.0.99"))
    monkeypatch.setattr(cuda_toolkit, "LOCK_FILE", changed)
    assert cuda_toolkit.find_toolkit() is None
    cuda_toolkit.ensure_toolkit(lambda message: None)
    assert len(pip_calls) == 2


def install_headers_wheel(names: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pip install a wheel of FlashInfer with these files."""

    def run_pip(words: list[str]) -> None:
        assert {"--require-hashes", str(cuda_toolkit.HEADERS_LOCK)} <= set(words)
        folder = Path(words[words.index("--target") + 1])
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("")

    monkeypatch.setattr(installer, "run_pip", run_pip)


@pytest.mark.usefixtures("releases_folder")
def test_headers_are_installed_without_what_python_could_import(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = [f"flashinfer/{name}" for name in ("__init__.py", "jit/env.py", "data/cccl/b.h")]
    install_headers_wheel([*HEADERS, *others], monkeypatch)
    assert cuda_toolkit.find_headers() is None
    messages: list[str] = []
    package = cuda_toolkit.ensure_headers(messages.append)
    [message] = messages
    assert message.startswith("installing headers of FlashInfer")
    files = [path.relative_to(package.parent) for path in package.rglob("*") if path.is_file()]
    assert sorted(map(str, files)) == sorted(HEADERS)
    assert cuda_toolkit.ensure_headers(messages.append) == package
    assert len(messages) == 1


@pytest.mark.usefixtures("releases_folder")
@pytest.mark.parametrize(
    ("names", "missing"),
    [
        (["flashinfer_python/data/include/a.cuh"], "flashinfer/data/include, "),
        (["flashinfer/include/a.cuh"], "flashinfer/data/include, "),
        (HEADERS[:-1], "flashinfer/data/spdlog$"),
    ],
)
def test_a_wheel_without_the_headers_is_refused_with_what_it_lacks(
    names: list[str], missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_headers_wheel(names, monkeypatch)
    with pytest.raises(NotReadyError, match=f"the wheel of flashinfer-python has no {missing}"):
        cuda_toolkit.ensure_headers(lambda message: None)
    assert cuda_toolkit.find_headers() is None


@pytest.mark.usefixtures("releases_folder")
def test_without_a_network_the_error_names_the_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    error = "ERROR: Could not find a version that satisfies flashinfer-python (from versions: none)"
    failed = subprocess.CompletedProcess(["pip"], 1, "", error)
    monkeypatch.setattr(subprocess, "run", lambda *words, **options: failed)
    what = r"^not installed: headers of FlashInfer.*: the package index cannot be reached"
    with pytest.raises(NotReadyError, match=what):
        cuda_toolkit.ensure_headers(lambda message: None)


UNREACHABLE = "http://127.0.0.1:9/simple"  # of a package index


def write_runtime_wheel(folder: Path) -> str:
    """Write a wheel with a runtime library alone, and return its line for a lock."""
    name = "nvidia_cuda_runtime-13.0.96"
    wheel = folder / f"{name}-py3-none-any.whl"
    about = {
        "METADATA": "Metadata-Version: 2.1\nName: nvidia-cuda-runtime\nVersion: 13.0.96\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("nvidia/cu13/lib/libcudart.so.13", b"")
        for file, text in about.items():
            archive.writestr(f"{name}.dist-info/{file}", text)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return f"nvidia-cuda-runtime==13.0.96 --hash=sha256:{digest}\n"


@pytest.mark.usefixtures("releases_folder")
@pytest.mark.parametrize("has_wheel", [True, False])
def test_it_is_installed_from_a_folder_of_wheels_without_a_network(
    has_wheel: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels, lock = tmp_path / "wheels", tmp_path / "cuda-toolkit.txt"
    wheels.mkdir()
    lock.write_text(write_runtime_wheel(wheels if has_wheel else tmp_path))
    monkeypatch.setattr(cuda_toolkit, "LOCK_FILE", lock)
    monkeypatch.setattr(cuda_toolkit, "check_host_compiler", lambda: "c++")
    monkeypatch.setenv("PIP_INDEX_URL", UNREACHABLE)
    monkeypatch.setenv(installer.WHEELS_VARIABLE, str(wheels))
    if not has_wheel:
        problem = f"{wheels} lacks a wheel .*`unfix releases wheels`"
        with pytest.raises(NotReadyError, match=problem):
            cuda_toolkit.ensure_toolkit(lambda message: None)
        return
    toolkit = cuda_toolkit.ensure_toolkit(lambda message: None)
    assert (toolkit.home / "lib64" / "libcudart.so").exists()
    assert cuda_toolkit.find_toolkit() == toolkit


@pytest.mark.skipif("UNFIX_NIGHTLY" not in os.environ, reason="a nightly test: it fetches 170 MB")
def test_the_wheels_that_are_fetched_build_a_kernel_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = tmp_path / "wheels"
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    wheelhouse.fetch_toolkit_wheels(wheels, python, lambda message: None)
    monkeypatch.setattr(paths, "releases_folder", lambda: tmp_path / ".releases")
    monkeypatch.setenv("PIP_INDEX_URL", UNREACHABLE)
    monkeypatch.setenv(installer.WHEELS_VARIABLE, str(wheels))
    toolkit = cuda_toolkit.ensure_toolkit(lambda message: None)
    assert cuda_toolkit.ensure_headers(lambda message: None).is_dir()
    kernel = tmp_path / "kernel.cu"
    kernel.write_text("__global__ void fill(int* out) { *out = 1; }")
    subprocess.run(
        [toolkit.home / "bin" / "nvcc", "-ptx", kernel, "-o", tmp_path / "k"], check=True
    )
    assert ".entry" in (tmp_path / "k").read_text()


def test_each_package_of_the_lock_has_a_hash_for_both_machines() -> None:
    packages = cuda_toolkit.LOCK_FILE.read_text().split("==")[1:]
    assert [package.count("--hash=sha256:") for package in packages] == [2] * 6


def test_a_machine_without_a_compiler_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(NotReadyError, match=r"no C\+\+ compiler 'no-such-compiler'.*apt-get"):
        cuda_toolkit.ensure_toolkit(lambda message: None)


# Constants of `cudart.c`, and the names that CUDA's headers have for them.
CUDA_NAMES = {
    "INVALID_VALUE": "cudaErrorInvalidValue",
    "INVALID_FUNCTION": "cudaErrorInvalidDeviceFunction",
    "NOT_SUPPORTED": "cudaErrorNotSupported",
    "COOPERATIVE": "cudaLaunchAttributeCooperative",
    "CLUSTER_DIMENSION": "cudaLaunchAttributeClusterDimension",
    "MAX_DYNAMIC_SHARED": "cudaFuncAttributeMaxDynamicSharedMemorySize",
    "SHARED_CARVEOUT": "cudaFuncAttributePreferredSharedMemoryCarveout",
    "CLUSTER_SIZE_ALLOWED": "cudaFuncAttributeNonPortableClusterSizeAllowed",
    "SHARED_OPTIN": "cudaDevAttrMaxSharedMemoryPerBlockOptin",
    "SHARED_OF_PROCESSOR": "cudaDevAttrMaxSharedMemoryPerMultiprocessor",
    "THREADS_OF_PROCESSOR": "cudaDevAttrMaxThreadsPerMultiProcessor",
    "MULTIPROCESSORS": "cudaDevAttrMultiProcessorCount",
    "THREADS_OF_BLOCK": "cudaDevAttrMaxThreadsPerBlock",
    "SHARED_OF_BLOCK": "cudaDevAttrMaxSharedMemoryPerBlock",
    "REGISTERS_OF_BLOCK": "cudaDevAttrMaxRegistersPerBlock",
    "MAJOR": "cudaDevAttrComputeCapabilityMajor",
    "MINOR": "cudaDevAttrComputeCapabilityMinor",
}
# Of a card, and without a name in any header.
OWN_NAMES = {"SUCCESS": 0, "SHARED_RESERVED": 1024, "MOST_REGISTERS": 255}
OWN_NAMES |= {"WARP": 32, "REGISTER_STEP": 8}


def test_the_stand_in_has_the_numbers_of_the_headers() -> None:
    toolkit = cuda_toolkit.find_toolkit()
    if toolkit is None:
        pytest.skip("no CUDA toolkit is installed: ./unfix releases add cuda-toolkit")
    header = (toolkit.home / "include" / "driver_types.h").read_text()
    of_header = {
        own: int(match[1])
        for own, name in CUDA_NAMES.items()
        if (match := re.search(rf"\b{name}\s*=\s*(\d+)", header))
    }
    source = (paths.project_folder() / "harness/sanitizer/cuda/cudart.c").read_text()
    own = {
        name: int(value)
        for names in re.findall(r"enum \{(.*?)\}", source)
        for name, value in re.findall(r"(\w+) = (\d+)", names)
    }
    assert own == of_header | OWN_NAMES
