"""This machine's C compiler, for the small libraries that checks of CUDA kernels need."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence

from harness.core.errors import NotReadyError


def find_c_compiler(user: str) -> str:
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if compiler is None:
        raise NotReadyError(f"{user} needs a C compiler, as nvcc does")
    return compiler


def call_compiler(words: Sequence[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise NotReadyError(f"{shlex.join(words)} failed: {done.stderr[-1000:]}")
