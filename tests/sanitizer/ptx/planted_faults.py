"""Kernels of `faults.cu`, each with a planted fault: their launches, and the place of a report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from ptx_kernels import pack_parameters, read_compiled, run_text

from harness.sanitizer.violations.exceptions import Violation

SOURCE, TEXT = read_compiled("faults")


def line_of(marker: str, source: Path = SOURCE) -> int:
    lines = enumerate(source.read_text().splitlines(), 1)
    [line] = [number for number, text in lines if text.endswith(f"// {marker}")]
    return line


def launch_fault(entry: str, parameters: bytes, tensors: dict[str, Any], **options: Any) -> None:
    """Launch with 32 threads, and raise the violation."""
    run_text(TEXT, parameters, tensors, entry=entry, **{"block": (32, 1, 1), **options})


def check_place(
    error: Violation,
    marker: str,
    thread: tuple[int, int, int],
    block: tuple[int, int, int] = (0, 0, 0),
    source: Path = SOURCE,
) -> None:
    location = error.location
    assert location is not None
    lines = [location.line, *(int(one.split(":")[1].split()[0]) for one in location.inlined)]
    assert line_of(f"FAULT {marker}", source) in lines
    assert (location.program, location.thread) == (block, thread)


def make_rows(size: int = 64, index: list[int] | None = None) -> tuple[bytes, dict[str, Any]]:
    out, values = np.zeros(size, np.float32), np.arange(size, dtype=np.float32)
    numbers = np.arange(size, dtype=np.int32)
    for place, number in enumerate(index or []):
        numbers[40 + place] = number
    tensors = {"out": out, "values": values, "index": numbers}
    return pack_parameters(out, values, numbers, size), tensors
