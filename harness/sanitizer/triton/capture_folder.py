"""The folder that `UNFIX_CAPTURE` names: launches with their arguments (`check/launch_capture`).

`FOLDER/kernels` may list the kernels that are wanted, `module:name`, a line each. Each kernel has a
folder of its own.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path

from harness.core.files import write_atomically

CAPTURE_VARIABLE = "UNFIX_CAPTURE"
_WANTED_NAME = "kernels"


def write_wanted_kernels(folder: Path, kernels: Iterable[str]) -> None:
    write_atomically(folder / _WANTED_NAME, "\n".join(kernels).encode())


@functools.cache
def read_wanted_kernels(folder: Path) -> frozenset[str] | None:
    """Read the kernels that are wanted; None for all."""
    try:
        return frozenset((folder / _WANTED_NAME).read_text().splitlines())
    except FileNotFoundError:
        return None


def get_kernel_folder(folder: Path, kernel: str) -> Path:
    return folder / hashlib.sha256(kernel.encode()).hexdigest()[:24]
