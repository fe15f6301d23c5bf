"""Compiled kernels that one run loaded, for the forks that come after it.

A run writes at its end which programs it loaded; its supervisor loads them from the disk, where all
runs share them, so that the next forks have them from the start. What a program does depends on its
key alone.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import msgspec

# Modules that a process has if it runs such kernels; each lists and preloads its own programs.
_HOLDERS = ("harness.kernels.cpu.program_cache", "harness.kernels.ptx.executor")


def write_loaded_programs(file: Path) -> None:
    """Write what this process has loaded, if it has run kernels."""
    found = {
        name: sys.modules[name].list_loaded_programs() for name in _HOLDERS if name in sys.modules
    }
    if any(found.values()):
        file.write_bytes(msgspec.json.encode(found))


def preload_programs(file: Path) -> None:
    """Load the programs of a file; there is none if the process died, or ran no kernels."""
    with contextlib.suppress(FileNotFoundError):
        found: dict[str, Any] = msgspec.json.decode(file.read_bytes())
        for name, programs in found.items():
            if name in sys.modules:
                sys.modules[name].preload_programs(programs)
