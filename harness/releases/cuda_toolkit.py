"""The CUDA toolkit that builds SGLang's kernels: nvcc and its headers, from the package index.

It lies in `.releases/cuda-toolkit`, beside the releases, and needs no GPU and no driver. A C++
compiler has to be on the machine: nvcc hands all host code to it. Some modules include headers of
FlashInfer and CUTLASS: `.releases/cuda-headers` has them, of FlashInfer's wheel and without Python.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

from harness.core import paths
from harness.core.code_digest import compute_digest
from harness.core.disk_progress import report_written_bytes
from harness.core.errors import NotReadyError
from harness.core.files import write_atomically
from harness.releases import installer, managed_releases
from harness.releases.installer import ReportMessage
from harness.releases.managed_releases import COMPLETION_MARKER
from harness.sanitizer.hooks import HOOKS

LOCK_FILE = managed_releases.LOCKS_FOLDER / "cuda-toolkit.txt"
HEADERS_LOCK = managed_releases.LOCKS_FOLDER / "cuda-headers.txt"
DOWNLOAD_BYTES, DISK_BYTES = 105e6, 275e6  # measured
HEADERS_DOWNLOAD_BYTES, HEADERS_DISK_BYTES = 65e6, 306e6
_HEADERS_PACKAGE = "flashinfer"
_HEADERS_FOLDERS = ("include", "csrc", "cutlass", "spdlog")  # of its `data`


@dataclass(frozen=True, slots=True)
class CudaToolkit:
    """An installed toolkit."""

    folder: Path

    @property
    def home(self) -> Path:
        """The folder that CUDA_HOME names."""
        return self.folder / "nvidia" / "cu13"

    @property
    def programs(self) -> Path:
        """The folder of ninja."""
        return self.folder / "bin"

    def set_variables(self, environment: MutableMapping[str, str]) -> None:
        """Make an environment's programs build with this toolkit."""
        environment["CUDA_HOME"] = environment["CUDA_PATH"] = str(self.home)
        path = environment.get("PATH", os.defpath).split(os.pathsep)
        if str(self.programs) not in path:
            environment["PATH"] = os.pathsep.join([str(self.programs), *path])


def find_toolkit() -> CudaToolkit | None:
    """Find the installed toolkit; None if it is missing, incomplete or of another lock."""
    folder = paths.releases_folder() / "cuda-toolkit"
    return CudaToolkit(folder) if _is_installed(folder, LOCK_FILE) else None


def find_headers() -> Path | None:
    """Find the installed headers' package; None if it is missing, incomplete or of another lock."""
    folder = paths.releases_folder() / "cuda-headers"
    return folder / _HEADERS_PACKAGE if _is_installed(folder, HEADERS_LOCK) else None


def ensure_headers(report: ReportMessage) -> Path:
    """Return the headers' package, and install it first if it is missing."""
    found = find_headers()
    if found is not None:
        return found
    with installer.hold_install_lock():
        return find_headers() or _install_headers(report)


def ensure_toolkit(report: ReportMessage) -> CudaToolkit:
    """Return the toolkit, and install it first if it is missing."""
    check_host_compiler()
    found = find_toolkit()
    if found is not None:
        return found
    with installer.hold_install_lock():
        found = find_toolkit()  # another process may have installed it meanwhile
        return found or _install_toolkit(report)


def _find_headers(may_install: bool) -> Path | None:
    found = find_headers()
    if found is None and may_install:
        found = ensure_headers(lambda message: print(message, file=sys.stderr))
    return found


def _find_toolkit_or_raise() -> CudaToolkit:
    found = find_toolkit()
    if found is None:
        raise NotReadyError("the CUDA toolkit is not installed: unfix releases add cuda-toolkit")
    return found


# Whoever builds kernels under check imports this module before.
HOOKS.find_toolkit, HOOKS.find_headers = _find_toolkit_or_raise, _find_headers


def check_host_compiler() -> str:
    """Return the path of the C++ compiler, or raise NotReadyError."""
    name = os.environ.get("CXX", "c++")
    path = shutil.which(name)
    if path is None:
        raise NotReadyError(
            f"there is no C++ compiler '{name}', to which nvcc hands the host code of a kernel: "
            "install one (Debian: apt-get install g++), or name another with CXX"
        )
    return path


def _install_toolkit(report: ReportMessage) -> CudaToolkit:
    toolkit = CudaToolkit(paths.releases_folder() / "cuda-toolkit")
    what = "the CUDA toolkit that builds SGLang's kernels"
    _install_packages(toolkit.folder, LOCK_FILE, what, (DOWNLOAD_BYTES, DISK_BYTES), report)
    # The wheels lack what a linker looks for: the folder lib64, and libcudart.so without a version.
    library = next(toolkit.home.glob("lib/libcudart.so.*"), None)
    if library is None:
        raise NotReadyError(f"the wheel of nvidia-cuda-runtime has no {toolkit.home}/lib/libcudart")
    (toolkit.home / "lib64").symlink_to("lib")
    (toolkit.home / "lib" / "libcudart.so").symlink_to(library.name)
    _complete_toolkit(toolkit.folder, LOCK_FILE)
    return toolkit


def _install_headers(report: ReportMessage) -> Path:
    folder = paths.releases_folder() / "cuda-headers"
    what = "headers of FlashInfer and CUTLASS that CUDA modules include"
    sizes = HEADERS_DOWNLOAD_BYTES, HEADERS_DISK_BYTES
    _install_packages(folder, HEADERS_LOCK, what, sizes, report)
    package = folder / _HEADERS_PACKAGE
    data = package / "data"
    needed = [data / name for name in _HEADERS_FOLDERS]
    missing = [str(path.relative_to(folder)) for path in needed if not path.is_dir()]
    if missing:
        raise NotReadyError(f"the wheel of flashinfer-python has no {', '.join(missing)}")
    needed_paths = {package, data, *needed}
    for path in {*folder.iterdir(), *package.iterdir(), *data.iterdir()} - needed_paths:
        if path.is_dir():
            installer.remove_folder(path)
        else:
            path.unlink()
    _complete_toolkit(folder, HEADERS_LOCK)
    return package


def _install_packages(
    folder: Path, lock: Path, what: str, sizes: tuple[float, float], report: ReportMessage
) -> None:
    download, disk = map(installer.format_size, sizes)
    report(f"installing {what} ({download} to fetch, {disk} on disk)")
    installer.remove_folder(folder)
    words = "install --no-deps --no-compile --only-binary :all: --require-hashes --target".split()
    try:
        with report_written_bytes(folder.parent, f"installing {what}", sum(sizes), report):
            installer.run_pip([*words, str(folder), "-r", str(lock)])
    except NotReadyError as error:
        raise NotReadyError(f"not installed: {what}: {error}") from error


def _is_installed(folder: Path, lock: Path) -> bool:
    try:
        found = json.loads((folder / COMPLETION_MARKER).read_text())
    except (OSError, ValueError):
        return False
    return bool(found == _describe_lock(lock))


def _complete_toolkit(folder: Path, lock: Path) -> None:
    write_atomically(folder / COMPLETION_MARKER, json.dumps(_describe_lock(lock)))


def _describe_lock(lock: Path) -> dict[str, str]:
    return {"lock": compute_digest(lock.read_bytes())}
