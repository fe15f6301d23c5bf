"""Flags that keep two builds of one CUDA source apart in a process.

g++ makes static members of templates unique in a process, whichever library has them, and host code
may read its kernel's address from one: of two builds of a source, which a toggle makes, the second
would launch the first one's kernels.
"""

from __future__ import annotations

import functools
import os
import subprocess
from typing import Any

_FLAGS = ("-Xcompiler", "-fno-gnu-unique")


def choose_name_flags(ninja: Any) -> tuple[str, ...]:
    """Return the flags for the device compiler of SGLang's `ninja` module, if it takes them."""
    toolchain = getattr(ninja, "toolchain", None)
    return find_name_flags(toolchain.compilers()[1]) if toolchain is not None else ()


@functools.cache
def find_name_flags(compiler: str) -> tuple[str, ...]:
    """Return the flags if nvcc and its host compiler take them; clang, and hipcc, refuse them."""
    command = [compiler, *_FLAGS, "-x", "c++", "-E", os.devnull]  # it writes no file
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except OSError:
        return ()
    return _FLAGS if done.returncode == 0 else ()
