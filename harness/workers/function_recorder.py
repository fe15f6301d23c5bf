"""The functions of SGLang that ran in a block: modules with the qualified names of functions.

A profiler in C records them, so kernels' launches and PyTorch's operators are as fast as before;
lines would need a tracer in Python. Example: {"sglang.srt.layers.rotary": ["Rotary.forward"]}
"""

from __future__ import annotations

import contextlib
import cProfile
from collections.abc import Iterator

from harness.kernels.triton.recorded_reach import shorten_to_package


@contextlib.contextmanager
def record_functions() -> Iterator[dict[str, list[str]]]:
    """Fill a dictionary at the end of a block with the functions that ran in this thread."""
    functions: dict[str, list[str]] = {}
    profiler = cProfile.Profile(subcalls=False, builtins=False)
    profiler.enable()
    try:
        yield functions
    finally:
        profiler.disable()
        found: dict[str, set[str]] = {}
        for entry in profiler.getstats():
            if isinstance(entry.code, str):
                continue  # a function in C
            if path := shorten_to_package(entry.code.co_filename):
                module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
                found.setdefault(module, set()).add(entry.code.co_qualname)
        functions |= {module: sorted(found[module]) for module in sorted(found)}
