"""The loaded libraries that hold GPU code, whose kernels are not Triton's and run unchecked.

Their launches are not counted, so a summary names the libraries.
"""

from __future__ import annotations

import struct
from pathlib import Path

_GPU_SECTIONS = (b".nv_fatbin", b".hip_fatbin")  # sections for the driver


class LoadedGpuLibraries:
    """The GPU libraries that this process has loaded; each file is read once."""

    def __init__(self, checked_folder: str = "") -> None:
        """`checked_folder`: libraries below it were built with checks, and are left out."""
        self._checked_folder = checked_folder
        self._has_gpu_code: dict[str, bool] = {}

    def list_names(self) -> list[str]:
        for file in _list_mapped_libraries():
            if self._checked_folder and file.startswith(f"{self._checked_folder}/"):
                continue
            if file not in self._has_gpu_code:
                self._has_gpu_code[file] = has_gpu_code(Path(file))
        names = {
            "/".join(Path(file).parts[-2:]) for file, holds in self._has_gpu_code.items() if holds
        }
        return sorted(names)


def _list_mapped_libraries() -> set[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    files = (line.split(maxsplit=5)[-1] for line in lines)
    return {file for file in files if file.startswith("/") and ".so" in file}


def has_gpu_code(file: Path) -> bool:
    """Return whether an ELF file has a section of GPU code; False for any other file."""
    try:
        with file.open("rb") as opened:
            head = opened.read(64)
            if len(head) < 64 or head[:5] != b"\x7fELF\x02":
                return False
            (start,) = struct.unpack_from("<Q", head, 40)
            size, _, names = struct.unpack_from("<HHH", head, 58)
            opened.seek(start + names * size)
            place, length = struct.unpack_from("<QQ", opened.read(size), 24)
            opened.seek(place)
            text = opened.read(length)
    except (OSError, struct.error):  # replaced since, or truncated
        return False
    return any(code in text for code in _GPU_SECTIONS)
