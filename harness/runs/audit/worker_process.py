"""A worker of the audit in a Python of its own: a request on its input, a line for each answer."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

from harness.core import paths
from harness.patching.child_environment import ChildEnvironment

LOG_NAME = "audit.log"
PACKAGES = ("triton", "llvmlite", "torch", "numpy")  # what the analysis stands on


def get_log() -> Path:
    return paths.state_folder() / LOG_NAME


def iterate_answers(
    python: str | Path, module: str, request: bytes, environment: ChildEnvironment
) -> Iterator[bytes]:
    """Start a worker, send it the request and iterate its answers until it ends.

    It imports the packages of its Python alone, whatever PYTHONPATH names. Output of Triton, such
    as errors about kernels that it refuses, goes to the log.
    """
    environment.require_release(python)
    log = get_log()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as noise:
        process = subprocess.Popen(
            [python, "-P", "-m", module],  # nothing of the working folder either
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=noise,
            env=environment,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(request)
    process.stdin.close()
    with process.stdout as answers:
        yield from answers
    process.wait()
