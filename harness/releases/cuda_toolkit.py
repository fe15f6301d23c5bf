"""The CUDA toolkit that builds SGLang's kernels: nvcc and its headers, from the package index.

It lies in `.releases/cuda-toolkit`, beside the releases, and needs no GPU and no driver. A C++
compiler has to be on the machine: nvcc hands all host code to it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

from harness.core import paths
from harness.core.code_digest import compute_digest
from harness.core.errors import NotReadyError
from harness.core.files import write_atomically
from harness.releases import installer, managed_releases
from harness.releases.installer import ReportMessage
from harness.releases.managed_releases import COMPLETION_MARKER

LOCK_FILE = managed_releases.LOCKS_FOLDER / "cuda-toolkit.txt"
DOWNLOAD_BYTES, DISK_BYTES = 105e6, 275e6  # measured


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
    try:
        is_current = json.loads((folder / COMPLETION_MARKER).read_text()) == _describe_lock()
    except (OSError, ValueError):
        return None
    return CudaToolkit(folder) if is_current else None


def ensure_toolkit(report: ReportMessage) -> CudaToolkit:
    """Return the toolkit, and install it first if it is missing."""
    check_host_compiler()
    found = find_toolkit()
    if found is not None:
        return found
    with installer.hold_install_lock():
        found = find_toolkit()  # another process may have installed it meanwhile
        return found or _install_toolkit(report)


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
    report(
        "installing the CUDA toolkit that builds SGLang's kernels "
        f"({installer.format_size(DOWNLOAD_BYTES)} to fetch, "
        f"{installer.format_size(DISK_BYTES)} on disk)"
    )
    installer.remove_folder(toolkit.folder)
    words = "install --no-deps --no-compile --only-binary :all: --require-hashes --target".split()
    installer.run_pip([*words, str(toolkit.folder), "-r", str(LOCK_FILE)])
    # The wheels lack what a linker looks for: the folder lib64, and libcudart.so without a version.
    library = next(toolkit.home.glob("lib/libcudart.so.*"), None)
    if library is None:
        raise NotReadyError(f"the wheel of nvidia-cuda-runtime has no {toolkit.home}/lib/libcudart")
    (toolkit.home / "lib64").symlink_to("lib")
    (toolkit.home / "lib" / "libcudart.so").symlink_to(library.name)
    write_atomically(toolkit.folder / COMPLETION_MARKER, json.dumps(_describe_lock()))
    return toolkit


def _describe_lock() -> dict[str, str]:
    return {"lock": compute_digest(LOCK_FILE.read_bytes())}
