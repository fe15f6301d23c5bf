"""Compiled kernels that one run loaded, for the forks that come after it.

A run writes at its end which programs it loaded; its supervisor loads them from the disk, where all
runs share them, so that the next forks have them from the start. What a program does depends on its
key alone.

Invariant: this is a hint. Whatever fails here costs time alone, and never a result.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from harness.core.files import write_atomically

# Modules that a process has if it runs such kernels; each lists and preloads its own programs.
_HOLDERS = ("harness.sanitizer.cpu.program_cache", "harness.sanitizer.ptx.executor")


@contextlib.contextmanager
def record_loaded_programs(file: Path) -> Iterator[None]:
    """Write at the block's end what this process has loaded, if it has run kernels."""
    process = os.getpid()
    yield
    if os.getpid() == process:  # not in a fork by the test that did not exit
        with contextlib.suppress(Exception):
            _write_loaded_programs(file)


def _write_loaded_programs(file: Path) -> None:
    found = {
        name: sys.modules[name].list_loaded_programs() for name in _HOLDERS if name in sys.modules
    }
    if any(found.values()):
        write_atomically(file, msgspec.json.encode(found))


def preload_programs(file: Path) -> None:
    """Load the programs of a file, and delete it; there is none if the run wrote none."""
    with contextlib.suppress(Exception):
        content = file.read_bytes()
        file.unlink()
        found: dict[str, Any] = msgspec.json.decode(content)
        for name, programs in found.items():
            if name in sys.modules:
                sys.modules[name].preload_programs(programs)
