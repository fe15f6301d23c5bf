"""What a program around the sanitizer may fill in: which source runs, who counts launches.

Each hook has a default, with which the sanitizer works alone. Example: the harness changes a CUDA
source while a process runs; its `get_device_code` gives the PTX of the changed source, and its
`count_cuda_launch` learns which lines each launch had. Further hooks are lists beside what they
observe (`check.launches.observers`, `dispatch.OBSERVERS`), and what takes long is announced to the
listeners of `harness.core.preparation`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness.core.errors import NotReadyError


class LaunchedLines(Protocol):
    """The lines of the kernel that a launch runs."""

    def has_line(self, path: str, line: int) -> bool | None:
        """Return whether it has a line; None for one that no kernel of its module has."""

    def list_lines(self) -> set[tuple[str, int]]:
        """Return its files and lines."""


class BuildToolkit(Protocol):
    """The CUDA toolkit that builds kernels on a machine without a GPU."""

    @property
    def home(self) -> Path:
        """The folder that CUDA_HOME names."""

    def set_variables(self, environment: MutableMapping[str, str]) -> None:
        """Make an environment's programs build with this toolkit."""


def _get_no_code() -> str:
    return ""


def _ignore_launch(lines: LaunchedLines, has_same_code: bool) -> None:
    """Stand for a program that counts no launches."""


def _leave_module(module: Any) -> None:
    """Stand for a program that changes no sources: a loaded module is built."""


@dataclass(frozen=True, slots=True)
class _OwnToolkit:
    """The machine's own toolkit, which a program of the machine would build with."""

    home: Path

    def set_variables(self, environment: MutableMapping[str, str]) -> None:
        environment["CUDA_HOME"] = environment["CUDA_PATH"] = str(self.home)


_USUAL_TOOLKIT = Path("/usr/local/cuda")


def _find_own_toolkit() -> BuildToolkit:
    nvcc = shutil.which("nvcc")  # it may be a script that calls the toolkit's
    homes = [*([Path(nvcc).resolve().parent.parent] if nvcc else ()), _USUAL_TOOLKIT]
    if chosen := os.environ.get("CUDA_HOME"):
        homes = [Path(chosen)]
    for home in homes:
        if any((home / name / "libcudart.so.13").exists() for name in ("lib", "lib64")):
            return _OwnToolkit(home)
    raise NotReadyError(
        f"kernels are built with a CUDA 13 toolkit, and {homes[0]} is none: set CUDA_HOME, or "
        "`pip install nvidia-cuda-nvcc nvidia-cuda-runtime nvidia-cuda-cccl` and name its "
        "folder `nvidia/cu13`"
    )


def _find_no_headers(may_install: bool) -> Path | None:
    return None


@dataclass(slots=True)
class SanitizerHooks:
    # The PTX that runs in place of the running CUDA module's own; '' for its own.
    get_device_code: Callable[[], str] = _get_no_code
    # Called for each launch of a CUDA kernel: its lines, and whether what runs in place of its
    # module's own PTX is the same code.
    count_cuda_launch: Callable[[LaunchedLines, bool], None] = _ignore_launch
    # Whether launches of CUDA kernels come here; the sanitizer says so, once they do.
    sees_cuda_launches: bool = False
    # Builds what a loaded CUDA module would run now, before anything is timed.
    build_cuda_module: Callable[[Any], None] = _leave_module
    # The toolkit, or NotReadyError; and headers that kernels include, which it may install.
    find_toolkit: Callable[[], BuildToolkit] = _find_own_toolkit
    find_headers: Callable[[bool], Path | None] = _find_no_headers


HOOKS = SanitizerHooks()
