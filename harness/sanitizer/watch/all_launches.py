"""The launches of all libraries in this process, counted by the kernel's name (`launch_counts.c`).

CUPTI calls a function in C for each launch that the driver gets, so a launch costs next to nothing.
A captured launch counts once. CUPTI has room for one subscriber: with another profiler in the
process nothing is counted, and the summary says so.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from pathlib import Path

COUNTING_LIBRARY = "libunfix_counts.so"  # in the folder of the checked toolkit
_CUPTI = "libcupti.so"
_OWN_KERNELS = ("begin_launch_kernel",)  # that the checks launch
_ERRORS = {
    -1: "torch's CUPTI has none of its functions",
    39: "CUPTI has another subscriber in this process, such as a profiler",
}


class AllLaunches:
    def __init__(self, library: Path, cupti: Path | None = None) -> None:
        """Begin to count; `failure` says why not, if it is not empty."""
        self.failure = ""
        self._library = ctypes.CDLL(str(library))
        self._library.unfix_read_launch_counts.restype = ctypes.c_size_t
        self._library.unfix_read_launch_counts.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        cupti = cupti or _find_cupti()
        if cupti is None:
            self.failure = f"this process has not loaded {_CUPTI}"
            return
        error = self._library.unfix_count_launches(str(cupti).encode())
        if error:
            self.failure = _ERRORS.get(error, f"CUPTI answers error {error}")

    def read(self) -> Counter[str]:
        """Return the launches so far, by the kernel's name as the driver has it."""
        read, size = self._library.unfix_read_launch_counts, 1 << 16
        while (needed := read(buffer := ctypes.create_string_buffer(size), size)) > size:
            size = 2 * needed
        lines = buffer.raw[:needed].decode(errors="replace").splitlines()
        counts: Counter[str] = Counter()
        for line in lines:
            number, _, name = line.partition(" ")
            counts[name] += int(number)
        for name in _OWN_KERNELS:
            counts.pop(name, None)
        return counts


def _find_cupti() -> Path | None:
    """Find the library that torch has loaded."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        file = line.split(maxsplit=5)[-1]
        if f"/{_CUPTI}" in file:
            return Path(file)
    return None
