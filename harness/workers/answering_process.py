"""A process that gets one request on its input, and answers it line by line until it ends."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from harness.core import paths
from harness.patching.child_environment import ChildEnvironment

EXIT_SECONDS = 30.0  # to exit, once its output has ended
LOG_NAME = "audit.log"


def get_log() -> Path:
    """Return the log of the processes that read kernels, of which one runs at a time."""
    return paths.state_folder() / LOG_NAME


def iterate_answers(
    python: str | Path,
    module: str,
    request: bytes,
    environment: ChildEnvironment,
    log: Path | None = None,
    working_folder: Path | None = None,
) -> Iterator[bytes]:
    """Start a module, send it the request and iterate its answers until it ends.

    It imports the packages of its Python alone, whatever the working folder holds. Its errors go
    to the log, and so does what libraries print: its answers are on a copy of its output.
    """
    environment.require_release(python)
    log = log or get_log()
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [str(python), "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            cwd=working_folder,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(request)
            process.stdin.close()
            yield from process.stdout
            with contextlib.suppress(subprocess.TimeoutExpired):  # all of its answers are there
                process.wait(timeout=EXIT_SECONDS)
        finally:
            process.kill()  # if its answers are not wanted any more
