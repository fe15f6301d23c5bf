"""A time limit for the builds of this process: templates of some modules take minutes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from types import SimpleNamespace
from typing import Any

from harness.core import processes
from harness.core.after_import import call_after_import
from harness.core.errors import UnfixError

# SGLang's module that runs it; older releases have none.
NINJA_MODULE = "sglang.kernels.jit.utils.compile.ninja"
END_SECONDS = 10.0  # for ninja to end its compilers


def limit_builds(seconds: float) -> None:
    """End each build of this process that takes longer, with its compilers."""

    def run_limited(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        for name in ("capture_output", "check", "timeout"):
            options.pop(name, None)
        process: subprocess.Popen[str]
        with subprocess.Popen(command, **options) as process:
            try:
                out, err = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                process.terminate()  # ninja ends its compilers; a kill would leave them running
                try:
                    process.communicate(timeout=END_SECONDS)
                except subprocess.TimeoutExpired:
                    _kill_with_descendants(process.pid)
                raise UnfixError(f"not built within {seconds:g} s") from None
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def limit(ninja: Any) -> None:
        ninja.subprocess = SimpleNamespace(run=run_limited)

    call_after_import({NINJA_MODULE: limit})


def _kill_with_descendants(pid: int) -> None:
    """Kill a process and all below it: ninja gives each compiler a process group of its own.

    A process ends before those that it started: otherwise it would go on when they have ended.
    """
    for each in [pid, *processes.iterate_descendants(pid)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
