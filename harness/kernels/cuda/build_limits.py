"""A time limit for the builds of this process: templates of some modules take minutes."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace
from typing import Any

from harness.core.after_import import call_after_import
from harness.core.errors import UnfixError

_NINJA = "sglang.kernels.jit.utils.compile.ninja"  # SGLang's module that runs it


def limit_builds(seconds: float) -> None:
    """End each build of this process that takes longer, with its compilers."""

    def run_limited(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        for name in ("capture_output", "check", "timeout"):
            options.pop(name, None)
        process: subprocess.Popen[str] = subprocess.Popen(command, **options)
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.terminate()  # ninja ends its compilers; a kill would leave them running
            process.communicate()
            raise UnfixError(f"not built within {seconds:g} s") from None
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def limit(ninja: Any) -> None:
        ninja.subprocess = SimpleNamespace(run=run_limited)

    call_after_import({_NINJA: limit})
