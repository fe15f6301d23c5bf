"""Whether a card has the registers for a block of a CUDA kernel, as ptxas counts them.

A kernel with launch bounds has no more than fit. One without may take 255 a thread, which 256
threads may: a launch of more has its module compiled by the toolkit's ptxas, or Triton's. Example:
1,024 threads with 80 registers need 81,920 of 65,536.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import math
import re
import subprocess
import tempfile
from pathlib import Path

from harness.core.cache import get_or_compute
from harness.core.errors import NotReadyError
from harness.sanitizer.device.cards import get_card
from harness.sanitizer.hooks import HOOKS
from harness.sanitizer.llvm.stored_code import CodeStore
from harness.sanitizer.ptx.executor import PtxModule
from harness.sanitizer.ptx.launch import CudaLaunch
from harness.sanitizer.violations.exceptions import LaunchRefused

_ALWAYS_FIT = 256  # threads
_UNIT = 256  # registers that a warp gets at once; warps come by fours
_TARGET = re.compile(r"^\.target\s+(\w+)", re.MULTILINE)
_USE = re.compile(r"Compiling entry function '(\w+)'.*?Used (\d+) registers", re.DOTALL)


def find_register_refusal(module: PtxModule, launch: CudaLaunch) -> LaunchRefused | None:
    threads = math.prod(launch.block)
    if threads <= _ALWAYS_FIT or module.most_threads(launch.entry):
        return None
    count = count_registers(module.text).get(launch.entry, 0)
    warps = -(-threads // 128) * 4
    needed, limit = warps * -(-32 * count // _UNIT) * _UNIT, get_card().registers_per_multiprocessor
    if needed <= limit:
        return None
    words = f"{threads} threads with {count} registers each"
    return LaunchRefused(f"{launch.name}: {words}, and the card has {limit} for a block")


def count_registers(text: str) -> dict[str, int]:
    """Count the registers of a thread by kernel; of none where no ptxas takes the text."""
    for ptxas in _list_compilers():
        key = make_cache_key(ptxas, text)
        if known := get_or_compute("registers", key, functools.partial(_compile_text, ptxas, text)):
            return known
    return {}


def make_cache_key(ptxas: Path, text: str) -> str:
    return CodeStore.make_key(text, str(ptxas), str(ptxas.stat().st_mtime_ns))


def _compile_text(ptxas: Path, text: str) -> dict[str, int]:
    target = _TARGET.search(text)
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(text)
        file.flush()
        words = "-v", f"-arch={target[1]}" if target else "", file.name, "-o", "/dev/null"
        done = subprocess.run([ptxas, *filter(None, words)], capture_output=True, text=True)
    return {name: int(used) for name, used in _USE.findall(done.stderr)}


def _list_compilers() -> list[Path]:
    places = []
    with contextlib.suppress(NotReadyError):
        places.append(HOOKS.find_toolkit().home / "bin" / "ptxas")
    triton = importlib.util.find_spec("triton")
    if triton is not None and triton.origin:
        # An older one, and one for Blackwell, which takes what a newer toolkit writes.
        places += sorted((Path(triton.origin).parent / "backends/nvidia/bin").glob("ptxas*"))
    return [place for place in places if place.exists()]
