"""What a process could launch that is not Triton's: libraries it has loaded that hold GPU code.

Their kernels are not looked at, and nobody here counts their launches; that they are there is said.
"""

from __future__ import annotations

import struct
from pathlib import Path

_GPU_SECTIONS = (b".nv_fatbin", b".hip_fatbin")  # the section that the driver is given


class LoadedGpuLibraries:
    """Of this process; each file is looked into once."""

    def __init__(self) -> None:
        self._has_gpu_code: dict[str, bool] = {}

    def list_names(self) -> list[str]:
        for file in _list_mapped_libraries():
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
    """Whether one of the sections of an ELF file is the GPU's; not of what is no such file."""
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
    except (OSError, struct.error):  # it was replaced since, or cut short
        return False
    return any(code in text for code in _GPU_SECTIONS)
